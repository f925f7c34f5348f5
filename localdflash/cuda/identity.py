"""What a verdict on the engine is about: the GPU and its driver, the libraries that make its code, a pair's shapes."""

import re
from importlib.metadata import version
from pathlib import Path

from localdflash.backend.options import Options
from localdflash.cuda.device import driver_version, find_device
from localdflash.cuda.sizes import CudaSizes
from localdflash.model.dflash_file import config_of_file
from localdflash.pairs.pair import LocalPair
from localdflash.weights.gguf import read_header

Identity = tuple[str, ...]


def machine() -> Identity:
    """The GPU by what it is, not by which one, and what its code comes from. NoDevice says why there is none."""
    device = find_device()
    import torch
    import triton

    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    name = torch.cuda.get_device_name(device)
    libraries = f"torch {torch.__version__}", f"triton {triton.__version__}", f"localdflash {version('localdflash')}"
    return name, f"compute capability {capability}", f"driver {driver_version()}", *libraries


def shapes(files: LocalPair, options: Options) -> Identity:
    """Which kernels a pair takes: the types and shapes of its matrices, its drafter, its cache.

    ModelError if the engine cannot run it at all.
    """
    drafter = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
    CudaSizes(files.target, drafter, options.kv, options.drafter_bits)
    found = _matrices(files.target)
    if drafter:
        found += [f"drafter {config_of_file(drafter)}", f"of {options.drafter_bits} bits"]
        found += [f"drafter {line}" for line in _matrices(drafter)] if drafter.suffix == ".gguf" else []
    return *found, f"{options.kv} keys", "FP4" if options.native_fp4 else "no FP4"


def _matrices(path: Path) -> list[str]:
    """The architecture, and each matrix once for all layers that have it alike."""
    header = read_header(path)
    kinds = {
        f"{re.sub(r'blk[.][0-9]+', 'blk', name)} {info.ggml_type.name} {info.shape}"
        for name, info in header.tensors.items()
    }
    return [header.architecture, *sorted(kinds)]
