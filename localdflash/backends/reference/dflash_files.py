"""Drafters of the DFlash family from files: safetensors with config.json beside them, or a `dflash` GGUF."""

from collections.abc import Mapping
from pathlib import Path

import torch

from localdflash.backends.cpu.model_source import strip_ones
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import UNUSED, config_of_file, key_of, own_tensors, plain_name
from localdflash.models.weights import gguf, safetensors

NO_BIAS = "confidence_head.proj.bias"  # which a file may leave out


def load(path: Path) -> DFlash:
    """Return the drafter in a GGUF file, or in a safetensors file with config.json beside it; float32, in eval mode."""
    config = config_of_file(path)
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        state = {key: gguf.load_tensor(header, name) for key, name in _names(header).items()}
    else:
        tensors = {plain_name(name): tensor for name, tensor in safetensors.load(path).items()}
        state = {name: tensor.float() for name, tensor in tensors.items() if name not in UNUSED}
    model = _network(config)
    wanted = _check(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, str(path))
    if NO_BIAS in wanted:
        state.setdefault(NO_BIAS, torch.zeros(1))
    model.load_state_dict({name: state[name].reshape(shape) for name, shape in wanted.items()}, assign=True)
    return model.eval().requires_grad_(False)


def check_gguf(header: gguf.GGUFHeader, config: DFlashConfig) -> None:
    """ModelError names a tensor of a GGUF drafter that is missing, unexpected or of another shape."""
    shapes = {key: header.tensors[name].shape for key, name in _names(header).items()}
    _check(_network(config), shapes, str(header.path))


def _names(header: gguf.GGUFHeader) -> dict[str, str]:
    found = {}
    for name in own_tensors(header):
        if not (key := key_of(name)):
            raise ModelError(f"{header.path}: tensor {name} has no place in a DFlash drafter: not supported yet")
        found[key] = name
    return found


def _network(config: DFlashConfig) -> DFlash:
    with torch.device("meta"):
        return DFlash(config)


def _check(model: DFlash, found: Mapping[str, tuple[int, ...]], where: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's tensors, if those of a file are the same."""
    wanted = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    for name in sorted((wanted.keys() ^ found.keys()) - ({NO_BIAS} & wanted.keys())):
        raise ModelError(f"{where}: tensor {name} is {'missing' if name in wanted else 'unexpected'}")
    for name, shape in found.items():
        if strip_ones(shape) != strip_ones(wanted[name]):
            raise ModelError(f"{where}: tensor {name} has shape {list(shape)}, expected {list(wanted[name])}")
    return wanted
