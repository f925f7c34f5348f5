"""What a pair is on this machine, from its entry alone: what would run it, whether it can fit, how fast at most.

Nothing is fetched; only the header of a target that is here is read. "Too large" compares with all the memory that the
machine has: what fits into what is free now is for `planner` to say.
"""

from dataclasses import dataclass

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cuda import device
from localdflash.backends.cuda.device import gpu_budget
from localdflash.base.errors import LocaldflashError
from localdflash.base.machine import measurements
from localdflash.loading.automatic import gpu_is_there
from localdflash.loading.plan import expected_speed
from localdflash.models.backend_names import Runner
from localdflash.models.memory.fit import QUANTIZATIONS
from localdflash.models.memory.free import all_memory
from localdflash.models.memory.parts import gigabytes
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import missing_files, shipped_file
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.split import size_of

BESIDE = 1e9  # bytes that a pair takes beside its files, where its entry does not say how much it needs
BITS = {**QUANTIZATIONS, "Q4_K_XL": QUANTIZATIONS["Q4_K_M"], "MXFP4": 4.6}  # bits a weight, of whole files


@dataclass(frozen=True)
class Here:
    """`backend`: the one that would run the pair, None if none does. `untried`: nothing has run its architecture yet.

    `tokens_per_second`: the most without drafts, by `bandwidth`; None if it is not known, or the pair does not run.
    """

    backend: Runner | None
    fits: bool
    untried: bool
    tokens_per_second: float | None
    bandwidth: measurements.Measurement | None


def here(pair: PairEntry) -> Here:
    """What a pair is on this machine."""
    backend, room = _backend(pair)
    untried = pair.origin == shipped_file() and not pair.ran
    fits = backend is not None and _needed(pair) <= room
    read = _bytes_per_token(pair) if fits else None
    if read is None:
        return Here(backend, fits, untried, None, None)
    bandwidth = measurements.bandwidth(on_gpu=backend == "cuda")
    return Here(backend, fits, untried, expected_speed.tokens_per_second(bandwidth.value, round(read)), bandwidth)


def why_not(pair: PairEntry) -> str:
    """Why a pair cannot run on this machine, in words; "" where it can."""
    backend, room = _backend(pair)
    if not pair.backends:
        return "no backend runs it yet"
    if backend is None:
        return f"only {' and '.join(pair.backends)} can run it, which this machine has not"
    needed = _needed(pair)
    return f"needs {gigabytes(needed)}, this machine has {gigabytes(room)}" if needed > room else ""


def _backend(pair: PairEntry) -> tuple[Runner | None, float]:
    """The backend that `auto` would take, were both engines of the processor as fast; and its bytes of memory."""
    if "cuda" in pair.backends and device.driver_present():
        try:
            if _needed(pair) <= (room := gpu_budget().free):
                return "cuda", room
        except LocaldflashError:
            pass  # another backend may do it
    if "llama.cpp" in pair.backends and gpu_is_there():
        return "llama.cpp", all_memory()
    if "cpu" in pair.backends and not cpu_library.available():
        return "cpu", all_memory()
    return ("llama.cpp" if "llama.cpp" in pair.backends else None), all_memory()


def _needed(pair: PairEntry) -> float:
    """Bytes of memory; 0 where nothing says how many."""
    if pair.memory_gb:
        return pair.memory_gb * 1e9
    files = 0 if missing_files(pair) else sum(size_of(source.path) for source in (pair.target, pair.drafter) if source)
    return files + BESIDE if files else 0


def _bytes_per_token(pair: PairEntry) -> float | None:
    """Bytes of weights that a token reads: by the target's header, else reckoned from what the entry says."""
    if all(part.path.is_file() for part in pair.target.parts):
        try:
            return expected_speed.bytes_per_token(read_header(pair.target.path))
        except LocaldflashError:
            return None
    bits = BITS.get((pair.target.quantization or "").removeprefix("UD-"))
    return pair.active * 1e9 * bits / 8 if pair.active and bits else pair.target.size
