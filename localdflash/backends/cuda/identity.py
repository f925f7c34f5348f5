"""Key of a first-load check: the GPU and its driver, the libraries that generate its code, the pair's shapes."""

import hashlib
import re
from pathlib import Path

from localdflash import __version__
from localdflash.backends.cuda.cuda_sizes import CudaSizes, budget_of
from localdflash.backends.cuda.device import driver_version, find_gpus
from localdflash.backends.cuda.gpus import Gpu, choose_gpu
from localdflash.kernels import cuda as kernels
from localdflash.models.load_options import Options
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.weights.gguf import read_header

Identity = tuple[str, ...]


def list_machines(device: str = "auto") -> list[Identity]:
    """Return the identities of the GPUs that match `device`; raise NoDevice if there is none."""
    return [_machine(gpu) for gpu in find_gpus(device)]


def _machine(gpu: Gpu) -> Identity:
    import torch
    import triton

    libraries = f"torch {torch.__version__}", f"triton {triton.__version__}", f"localdflash {__version__}"
    return (
        gpu.name,
        f"compute capability {gpu.chip}",
        f"driver {driver_version()}",
        *libraries,
        f"kernels {hash_kernels()}",
    )


def identify_pair(files: LocalPair, options: Options) -> tuple[Identity, Identity]:
    """Return the identity of the GPU that would run a pair, and the types and shapes that select the pair's kernels."""
    drafter = (files.drafter_safetensors or files.drafter_gguf) if options.draft else None
    sizes = CudaSizes(files.target, drafter, options.kv, options.drafter_bits)
    gpu, _ = choose_gpu(find_gpus(options.device), sizes, options.context, budget_of)
    found = _describe_matrices(files.target)
    if drafter:
        found += [f"drafter {config_of_file(drafter)}", f"of {options.drafter_bits} bits"]
        found += [f"drafter {line}" for line in _describe_matrices(drafter)] if drafter.suffix == ".gguf" else []
    return _machine(gpu), (*found, f"{options.kv} keys", "FP4" if options.native_fp4 else "no FP4")


def hash_kernels() -> str:
    """Return a hash of the kernels' sources: verdicts and saved KV caches of other kernels do not count."""
    digest = hashlib.sha256()
    for path in sorted(Path(kernels.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _describe_matrices(path: Path) -> list[str]:
    """Return the architecture, and each distinct name, type and shape of a matrix, without layer numbers."""
    header = read_header(path)
    kinds = {
        f"{re.sub(r'blk[.][0-9]+', 'blk', name)} {info.ggml_type.name} {info.shape}"
        for name, info in header.tensors.items()
    }
    return [header.architecture, *sorted(kinds)]
