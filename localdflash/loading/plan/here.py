"""Assess a pair on this machine from its registry entry: backend, whether it fits, upper bound of its speed.

A pair fits if it needs at most the machine's whole memory; `planner` compares with the memory that is free now.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cuda import device
from localdflash.backends.cuda.device import all_gpu_memory
from localdflash.base.errors import LocaldflashError
from localdflash.base.machine import measurements
from localdflash.loading.automatic import gpu_is_there
from localdflash.models.backend_names import Runner
from localdflash.models.memory.fit import QUANTIZATIONS
from localdflash.models.memory.free import all_memory
from localdflash.models.memory.parts import format_bytes
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import missing_files, shipped_file
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, read_header
from localdflash.models.weights.split import count_bytes

OVERHEAD_BYTES = 1e9  # in addition to the files, if the entry has no `memory_gb`
BITS = {**QUANTIZATIONS, "Q4_K_XL": QUANTIZATIONS["Q4_K_M"], "MXFP4": 4.6}  # per weight, as a mean over the file


@dataclass(frozen=True)
class PairAssessment:
    """A pair on this machine. `backend` is None if no backend runs the pair.

    `untried`: the pair is in models.toml, which lists the tests, and none of them ran its architecture.
    `tokens_per_second`: upper bound without drafting at `bandwidth`; None if it is unknown, or the pair does not run.
    """

    backend: Runner | None
    fits: bool
    untried: bool
    tokens_per_second: float | None
    bandwidth: measurements.Measurement | None


def assess_pair(pair: PairEntry) -> PairAssessment:
    """Assess a pair on this machine."""
    backend, room, on_gpu = _backend(pair)
    untried = pair.origin == shipped_file() and not pair.ran
    fits = backend is not None and needed_bytes(pair) <= room
    token_bytes = _pair_bytes_per_token(pair) if fits else None
    if token_bytes is None:
        return PairAssessment(backend, fits, untried, None, None)
    bandwidth = measurements.bandwidth(on_gpu=on_gpu)
    return PairAssessment(backend, fits, untried, tokens_per_second(bandwidth.value, round(token_bytes)), bandwidth)


def why_not(pair: PairEntry) -> str:
    """Return why a pair cannot run on this machine, even with all of its memory free; "" if it can."""
    backend, room, _ = _backend(pair)
    if not pair.backends:
        return "no backend runs it yet"
    if backend is None:
        return f"needs --backend {' or '.join(pair.backends)}, which this machine does not have"
    needed = needed_bytes(pair)
    return f"needs {format_bytes(needed)}, this machine has {format_bytes(room)}" if needed > room else ""


def _backend(pair: PairEntry) -> tuple[Runner | None, int, bool]:
    """Return the likely backend, the memory for the pair in bytes, and whether a GPU holds the pair.

    Loading with `auto` may choose otherwise, since it times the CPU engine and llama.cpp.
    """
    gpu_memory, fits_gpu = 0, False
    if device.driver_present():
        with suppress(LocaldflashError):  # another backend may run it
            gpu_memory = all_gpu_memory()
            fits_gpu = needed_bytes(pair) <= gpu_memory
    if fits_gpu and "cuda" in pair.backends:
        return "cuda", gpu_memory, True
    if "llama.cpp" in pair.backends and gpu_is_there():
        return "llama.cpp", gpu_memory if fits_gpu else all_memory(), fits_gpu
    if "cpu" in pair.backends and not cpu_library.why_unavailable():
        return "cpu", all_memory(), False
    return ("llama.cpp" if "llama.cpp" in pair.backends else None), all_memory(), False


def needed_bytes(pair: PairEntry) -> float:
    """Return the memory that the pair needs in bytes; 0 if unknown: then it counts as fitting."""
    if pair.memory_gb:
        return pair.memory_gb * 1e9
    files = 0 if missing_files(pair) else sum(count_bytes(part.path) for part in (pair.target, pair.drafter) if part)
    return files + OVERHEAD_BYTES if files else 0


def _pair_bytes_per_token(pair: PairEntry) -> float | None:
    """Return the bytes of weights that a token reads, from the target's header; None if unknown.

    Without the file: the entry's active weights (in 10^9) at its quantization, else the size of the whole file.
    """
    if all(part.path.is_file() for part in pair.target.parts):
        try:
            return bytes_per_token(read_header(pair.target.path))
        except LocaldflashError:
            return None
    bits = BITS.get((pair.target.quantization or "").removeprefix("UD-"))
    return pair.active * 1e9 * bits / 8 if pair.active and bits else pair.target.size


def bytes_per_token(header: GGUFHeader) -> int:
    """Return the bytes of weights that a token reads: active experts, and the embedding table only as the head."""
    lookup_table = "token_embd.weight" if "output.weight" in header.tensors else ""
    expert_count = number_of(header, "expert_count") or 1
    active_experts = number_of(header, "expert_used_count") or expert_count
    dense_bytes, expert_bytes = 0, 0
    for name, info in header.tensors.items():
        if "_exps" in name:
            expert_bytes += info.nbytes
        elif name != lookup_table:
            dense_bytes += info.nbytes
    return dense_bytes + expert_bytes * active_experts // expert_count


def count_weights(header: GGUFHeader) -> tuple[int, int]:
    """Return the number of weights that a quantization changes, and the bytes of all others (norms, routers)."""
    weights, other_bytes = 0, 0
    for info in header.tensors.values():
        if len(info.shape) > 1 and info.ggml_type != GGMLType.F32:
            weights += prod(info.shape)
        else:
            other_bytes += info.nbytes
    return weights, other_bytes


def quantization(header: GGUFHeader) -> str:
    """Return the quantization that the file names ("Q4_K_M"), else the type of most of its bytes."""
    from gguf import LlamaFileType

    code = header.metadata.get("general.file_type")
    if isinstance(code, int) and code in set(LlamaFileType):
        return str(LlamaFileType(code).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    sizes = Counter[str]()
    for info in header.tensors.values():
        sizes[info.ggml_type.name] += info.nbytes
    return sizes.most_common(1)[0][0] if sizes else "no weights"


def tokens_per_second(bandwidth: float, token_bytes: int) -> float:
    """Return the upper bound without drafting at a bandwidth in GB/s; engines reach 40 to 85 % of it."""
    return bandwidth * 1e9 / max(token_bytes, 1)


def number_of(header: GGUFHeader, name: str) -> int | None:
    """Return a number in the metadata of the header's architecture, or None."""
    value = header.metadata.get(f"{header.metadata.get('general.architecture')}.{name}")
    return value if isinstance(value, int) else None
