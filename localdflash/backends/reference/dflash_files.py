"""Loads DFlash, DSpark and DFlash 2 drafters: safetensors next to config.json, or a `dflash` GGUF."""

from collections.abc import Mapping
from pathlib import Path

import torch

from localdflash.backends.cpu.model_source import strip_ones
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.dflash_file import UNUSED, config_of_file, key_of, own_tensors, plain_name
from localdflash.models.weights import gguf, safetensors

OPTIONAL_BIAS = "confidence_head.proj.bias"  # zero if the file lacks it


def load(path: Path) -> DFlash:
    """Return the drafter of a GGUF file, or of a safetensors file next to config.json; float32, in eval mode."""
    config = config_of_file(path)
    if path.suffix == ".gguf":
        header = gguf.read_header(path)
        state = {key: gguf.load_tensor(header, name) for key, name in _map_names(header).items()}
    else:
        tensors = {plain_name(name): tensor for name, tensor in safetensors.load(path).items()}
        state = {name: tensor.float() for name, tensor in tensors.items() if name not in UNUSED}
    model = _empty_network(config)
    expected = _check_shapes(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, str(path))
    if OPTIONAL_BIAS in expected:
        state.setdefault(OPTIONAL_BIAS, torch.zeros(1))
    model.load_state_dict({name: state[name].reshape(shape) for name, shape in expected.items()}, assign=True)
    return model.eval().requires_grad_(False)


def check_gguf(header: gguf.GGUFHeader, config: DFlashConfig) -> None:
    """Raise ModelError for a tensor of a GGUF drafter that is missing, unexpected or of another shape."""
    shapes = {key: header.tensors[name].shape for key, name in _map_names(header).items()}
    _check_shapes(_empty_network(config), shapes, str(header.path))


def _map_names(header: gguf.GGUFHeader) -> dict[str, str]:
    found = {}
    for name in own_tensors(header):
        if not (key := key_of(name)):
            raise ModelError(f"{header.path}: unexpected tensor {name} in a DFlash drafter; use another drafter")
        found[key] = name
    return found


def _empty_network(config: DFlashConfig) -> DFlash:
    with torch.device("meta"):
        return DFlash(config)


def _check_shapes(model: DFlash, found: Mapping[str, tuple[int, ...]], path: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a network's tensors; raise ModelError if a file's shapes differ."""
    expected = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    for name in sorted((expected.keys() ^ found.keys()) - ({OPTIONAL_BIAS} & expected.keys())):
        raise ModelError(f"{path}: tensor {name} is {'missing' if name in expected else 'unexpected'}")
    for name, shape in found.items():
        if strip_ones(shape) != strip_ones(expected[name]):
            raise ModelError(f"{path}: tensor {name} has shape {list(shape)}, expected {list(expected[name])}")
    return expected
