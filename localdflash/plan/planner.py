"""The plan of a pair on this machine, before anything of it is loaded or even downloaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from localdflash.backend.fit import (
    NO_DRAFTER,
    Fit,
    MemoryBudget,
    Sizes,
    best_quantization,
    fit,
    largest_context,
    weights_of,
)
from localdflash.backend.free import program_bytes, system_budget
from localdflash.backend.names import Backend
from localdflash.backend.parts import DRAFTER, PROGRAM, Parts, total
from localdflash.cuda.device import gpu_budget
from localdflash.errors import ModelError, NoDevice, OutOfMemory, UsageError
from localdflash.loading.choice import Case, likely
from localdflash.machine import measurements
from localdflash.pairs.hub import Unreachable
from localdflash.pairs.pair import PairEntry
from localdflash.pairs.registry import how_to_get, load_registry, missing_files
from localdflash.plan import speed
from localdflash.plan.stand_in import drafter_stand_in, stand_in
from localdflash.weights.gguf import GGUFHeader, read_header


@dataclass(frozen=True)
class Speed:
    """The most tokens a second that memory bandwidth allows, an estimate. `drafted` is None if tau is not known."""

    bandwidth: measurements.Measurement  # GB/s
    bytes_per_token: int
    plain: float
    tau: measurements.Measurement | None
    drafted: float | None


@dataclass(frozen=True)
class Plan:
    """The memory that a pair takes, and what of it fits. Sizes in bytes."""

    pair: str
    backend: str
    why: str  # this backend
    context: int
    trained: int
    drafter: str
    parts: Parts
    margin: int
    free: int
    what: str  # memory, or GPU memory
    fits: bool
    verdict: str  # what was given up so that it fits, or what would fit
    largest_context: int
    largest_context_without_drafter: int
    quantization: str
    best_quantization: str | None
    speed: Speed

    @property
    def total(self) -> int:
        """Bytes of all parts and the margin."""
        return total(self.parts) + self.margin


def make_plan(spec: str, context: int = 0, backend: Backend = "auto") -> Plan:
    """Plan a pair of the registry, or any spec that it resolves; a context of 0 means as much as fits.

    ModelError if the pair cannot run; Unreachable if it is not here and the hub cannot be asked.
    """
    pair = load_registry().resolve(spec)
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet; see `localdflash models show {pair.id}`")
    with TemporaryDirectory(prefix="localdflash-plan-") as folder:
        target, drafter = _headers(pair, Path(folder))
        if backend != "auto":
            return PLANNERS[backend](pair.id, target, drafter, context, "asked for")
        try:
            return _on_cuda(pair.id, target, drafter, context, "the GPU can run it")
        except (NoDevice, ModelError) as error:
            choice = likely(Case(target, _form(drafter, ".gguf")))
            return PLANNERS[choice.backend](pair.id, target, drafter, context, f"{choice.why}; not CUDA: {error}")


def _headers(pair: PairEntry, folder: Path) -> tuple[Path, Path | None]:
    """The files of target and drafter, or stand-ins in `folder` for those that are still on the hub."""
    missing = missing_files(pair)
    drafter = pair.drafter if pair.drafter and pair.drafter.runs else None
    if gone := next((source for source in missing if source.fetched_from is None), None):
        raise ModelError(how_to_get(gone))
    try:
        target = stand_in(pair.target, folder) if pair.target in missing else pair.target.path
        if drafter is None:
            return target, None
        fetched = drafter in missing or drafter.config in missing
        return target, drafter_stand_in(drafter, folder) if fetched else drafter.path
    except Unreachable as error:
        known = f"{pair.memory_gb:g} GB of memory are needed" if pair.memory_gb else "its memory is not known"
        raise Unreachable(f"{error}; the registry says of {pair.id!r}: {known}") from error


def _form(drafter: Path | None, preferred: str) -> Path | None:
    """The form of a drafter that a backend prefers, if both are here."""
    other = drafter and drafter.with_suffix(preferred)
    return other if other and other.is_file() else drafter


def _on_cpu(pair: str, target: Path, drafter: Path | None, context: int, why: str) -> Plan:
    from localdflash.cpu.sizes import CpuSizes

    sizes = CpuSizes(target, _form(drafter, ".gguf"))
    if context > sizes.trained:
        raise UsageError(f"--ctx {context}: {target.name} was trained for {sizes.trained} tokens at most")
    program, bandwidth = program_bytes(False), measurements.bandwidth()
    return _plan(Planned(pair, "cpu", why, target, sizes, system_budget(), program, bandwidth), context)


def _on_llamacpp(pair: str, target: Path, drafter: Path | None, context: int, why: str) -> Plan:
    from localdflash.llamacpp.sizes import LlamaCppSizes

    drafter = _form(drafter, ".gguf")
    with LlamaCppSizes(target, drafter) as sizes:
        if context > sizes.trained:
            raise UsageError(f"--ctx {context}: {target.name} was trained for {sizes.trained} tokens at most")
        program = program_bytes(drafter is not None and drafter.suffix == ".safetensors")
        bandwidth = measurements.bandwidth()
        return _plan(Planned(pair, "llama.cpp", why, target, sizes, system_budget(), program, bandwidth), context)


def _on_cuda(pair: str, target: Path, drafter: Path | None, context: int, why: str) -> Plan:
    budget = gpu_budget()
    from localdflash.cuda.sizes import CudaSizes

    sizes, bandwidth = CudaSizes(target, _form(drafter, ".safetensors")), measurements.bandwidth(on_gpu=True)
    if context > sizes.trained:
        raise UsageError(f"--ctx {context}: {target.name} on the CUDA engine has {sizes.trained} tokens at most")
    return _plan(Planned(pair, "cuda", why, target, sizes, budget, 0, bandwidth), context)


PLANNERS: Mapping[Backend, Callable[[str, Path, Path | None, int, str], Plan]] = {
    "cpu": _on_cpu,
    "cuda": _on_cuda,
    "llama.cpp": _on_llamacpp,
}


@dataclass(frozen=True)
class Planned:
    """A pair on a backend of this machine. `program`: bytes that this process holds already, so not part of the
    budget.
    """

    pair: str
    backend: str
    why: str
    target: Path
    sizes: Sizes
    budget: MemoryBudget
    program: int
    bandwidth: measurements.Measurement


def _plan(case: Planned, context: int) -> Plan:
    sizes, budget = case.sizes, case.budget
    full = sizes.drafters[0]
    try:
        chosen, fits = fit(sizes, budget, context), True
        verdict = chosen.notice
    except OutOfMemory as error:
        wanted = context or sizes.trained
        chosen, fits, verdict = Fit(full, wanted, sizes.parts(wanted, full)), False, str(error)
    header = read_header(case.target)
    smallest = budget if fits else MemoryBudget(budget.free + _drafting(sizes, chosen), budget.margin, budget.what)
    return Plan(
        pair=case.pair,
        backend=case.backend,
        why=case.why,
        context=chosen.context,
        trained=sizes.trained,
        drafter=chosen.drafter,
        parts=chosen.parts | ({PROGRAM: case.program} if case.program else {}),
        margin=budget.margin,
        free=budget.free + case.program,
        what=budget.what,
        fits=fits,
        verdict=verdict,
        largest_context=largest_context(sizes, full, budget, sizes.trained),
        largest_context_without_drafter=largest_context(sizes, NO_DRAFTER, budget, sizes.trained),
        quantization=speed.quantization(header),
        best_quantization=best_quantization(chosen.parts, smallest, weights_of(*speed.matrices(header))),
        speed=_speed(case, header, chosen),
    )


def _drafting(sizes: Sizes, chosen: Fit) -> int:
    """The bytes that leaving out the drafter would free."""
    return total(chosen.parts) - total(sizes.parts(chosen.context, NO_DRAFTER))


def _speed(case: Planned, header: GGUFHeader, chosen: Fit) -> Speed:
    read, bandwidth = speed.bytes_per_token(header), case.bandwidth
    plain = speed.tokens_per_second(bandwidth.value, read)
    tau = measurements.recall(f"tau of {case.pair}") if chosen.drafter != NO_DRAFTER else None
    if tau is None:
        return Speed(bandwidth, read, plain, None, None)
    drafted = speed.drafted_tokens_per_second(bandwidth.value, read, chosen.parts[DRAFTER], tau.value)
    return Speed(bandwidth, read, plain, tau, drafted)
