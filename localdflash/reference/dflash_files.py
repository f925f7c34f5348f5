"""Drafters of the DFlash family from files: safetensors with config.json beside them, or a `dflash` GGUF."""

from pathlib import Path

import torch

from localdflash.errors import ModelError
from localdflash.model.dflash_config import DFlashConfig
from localdflash.model.dflash_file import UNUSED, config_of_file, plain_name
from localdflash.model.dflash_gguf import own_tensors
from localdflash.model.dflash_tensors import key_of
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
        if not (key := key_of(name)):
            raise ModelError(f"{path}: tensor {name} has no place in a DFlash drafter: not supported yet")
        state[key] = gguf.load_tensor(header, name)
    return _filled(config, state, str(path))


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
