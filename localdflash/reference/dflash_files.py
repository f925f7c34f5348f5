"""Drafters of the DFlash family from files: safetensors with config.json beside them, or a `dflash` GGUF."""

from pathlib import Path

import torch

from localdflash.errors import ModelError
from localdflash.model.dflash_config import DFlashConfig
from localdflash.model.dflash_file import UNUSED, config_of_file, plain_name
from localdflash.model.dflash_gguf import own_tensors
from localdflash.model.dflash_tensors import CONVOLUTION_TENSORS, HEAD_TENSORS, TOP_TENSORS
from localdflash.model.gguf_config import LAYER_TENSORS
from localdflash.reference.dflash_model import DFlash
from localdflash.weights import gguf, safetensors

NO_BIAS = "confidence_head.proj.bias"  # which a file may leave out


def load(path: Path) -> DFlash:
    """The drafter in a GGUF file, or in a safetensors file with config.json beside it; float32, in eval mode."""
    if path.suffix == ".gguf":
        return _load_gguf(path)
    return _load_safetensors(path)


def _load_safetensors(path: Path) -> DFlash:
    config = config_of_file(path)
    tensors = {plain_name(name): tensor for name, tensor in safetensors.load(path).items()}
    return _filled(config, {k: v.float() for k, v in tensors.items() if k not in UNUSED}, str(path))


def _load_gguf(path: Path) -> DFlash:
    header, config = gguf.read_header(path), config_of_file(path)
    state = {}
    for name in own_tensors(header):
        if not (key := _key_of(name)):
            raise ModelError(f"{path}: tensor {name} has no place in a DFlash drafter: not supported yet")
        state[key] = gguf.load_tensor(header, name)
    return _filled(config, state, str(path))


def _key_of(name: str) -> str:
    """A tensor of a GGUF as z-lab's state dict has it, or "" for one that no drafter has."""
    if name in HEAD_TENSORS:
        return HEAD_TENSORS[name]
    parts = name.split(".")
    stem, kind = ".".join(parts[:-1]), parts[-1]
    if stem in TOP_TENSORS:
        return f"{TOP_TENSORS[stem]}.{kind}"
    if len(parts) < 3 or parts[0] != "blk":
        return ""
    layer, inner = f"layers.{parts[1]}.", ".".join(parts[2:])
    if inner in CONVOLUTION_TENSORS:
        return layer + CONVOLUTION_TENSORS[inner]
    return f"{layer}{LAYER_TENSORS[parts[2]]}.{kind}" if len(parts) == 4 and parts[2] in LAYER_TENSORS else ""


def _filled(config: DFlashConfig, state: dict[str, torch.Tensor], where: str) -> DFlash:
    with torch.device("meta"):
        model = DFlash(config)
    wanted = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    if NO_BIAS in wanted:
        state.setdefault(NO_BIAS, torch.zeros(1))
    for name in sorted(wanted.keys() ^ state.keys()):
        raise ModelError(f"{where}: tensor {name} is {'missing' if name in wanted else 'unexpected'}")
    for name, shape in wanted.items():
        if _without_ones(state[name].shape) != _without_ones(shape):
            raise ModelError(f"{where}: tensor {name} has shape {list(state[name].shape)}, expected {list(shape)}")
    model.load_state_dict({name: state[name].reshape(shape) for name, shape in wanted.items()}, assign=True)
    return model.eval().requires_grad_(False)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without the leading ones, which a GGUF may have or not."""
    return _without_ones(shape[1:]) if len(shape) > 1 and shape[0] == 1 else tuple(shape)
