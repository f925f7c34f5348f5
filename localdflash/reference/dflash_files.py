"""DFlash drafters from files: z-lab's safetensors folder (config.json beside it), or a `dflash` GGUF."""

from pathlib import Path

import torch

from localdflash.errors import ModelError
from localdflash.model.dflash_config import DFlashConfig, config_of_file, own_tensors
from localdflash.model.gguf_config import LAYER_TENSORS
from localdflash.reference.dflash_model import DFlash
from localdflash.weights import gguf, safetensors

TOP_TENSORS = {"fc": "fc", "enc.output_norm": "hidden_norm", "output_norm": "norm"}


def load(path: Path) -> DFlash:
    """The drafter in a GGUF file, or in a safetensors file with config.json beside it; float32, in eval mode."""
    if path.suffix == ".gguf":
        return _load_gguf(path)
    return _load_safetensors(path)


def _load_safetensors(path: Path) -> DFlash:
    config = config_of_file(path)
    return _filled(config, {k: v.float() for k, v in safetensors.load(path).items()}, str(path))


def _load_gguf(path: Path) -> DFlash:
    header, config = gguf.read_header(path), config_of_file(path)
    state = {}
    for name in own_tensors(header):
        stem, _, kind = name.rpartition(".")
        parts = stem.split(".")
        if stem in TOP_TENSORS:
            key = TOP_TENSORS[stem]
        elif len(parts) == 3 and parts[0] == "blk" and parts[2] in LAYER_TENSORS:
            key = f"layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}"
        else:
            raise ModelError(f"{path}: tensor {name} has no place in a DFlash drafter: not supported yet")
        state[f"{key}.{kind}"] = gguf.load_tensor(header, name)
    return _filled(config, state, str(path))


def _filled(config: DFlashConfig, state: dict[str, torch.Tensor], where: str) -> DFlash:
    with torch.device("meta"):
        model = DFlash(config)
    wanted = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    for name in sorted(wanted.keys() ^ state.keys()):
        raise ModelError(f"{where}: tensor {name} is {'missing' if name in wanted else 'unexpected'}")
    for name, shape in wanted.items():
        if tuple(state[name].shape) != shape:
            raise ModelError(f"{where}: tensor {name} has shape {list(state[name].shape)}, expected {list(shape)}")
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)
