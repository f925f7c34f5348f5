"""Memory plan of a pair on this machine; a sparse stand-in with only the header replaces a file on the hub."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from localdflash.backends.cuda.device import gpu_budget, means_gpu
from localdflash.backends.cuda.gpus import ANY_GPU
from localdflash.base import extras
from localdflash.base.errors import ModelError, NoDevice, OutOfMemory
from localdflash.base.machine import measurements
from localdflash.loading.automatic import gpu_is_there
from localdflash.loading.backends import check_device
from localdflash.loading.engine_choice import TimingCase, likely_engine
from localdflash.loading.plan.here import bytes_per_token, count_weights, quantization, tokens_per_second
from localdflash.models.backend_names import Backend
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import (
    NO_DRAFTER,
    Fit,
    MemoryBudget,
    MemorySizes,
    best_quantization,
    check_context,
    fit,
    largest_context,
    weights_of,
)
from localdflash.models.memory.free import program_bytes, system_budget
from localdflash.models.memory.parts import DRAFTER, IN_MEMORY, PROGRAM, Parts, split_host_parts, total
from localdflash.models.registry import hub, packages
from localdflash.models.registry.hub import Unreachable
from localdflash.models.registry.pair_entry import DrafterSource, FileSource, PairEntry
from localdflash.models.registry.registry import load_registry, missing_files, require_local_files
from localdflash.models.registry.remote_head import read_head
from localdflash.models.shapes.dflash_file import MAX_JSON_BYTES
from localdflash.models.shapes.gguf_config import ROPE_FACTORS
from localdflash.models.weights.gguf import GGUFHeader, cached_headers, read_header


@dataclass(frozen=True)
class Speed:
    """Estimated upper bound in tokens per second by memory bandwidth.

    With llama.cpp on a GPU, whose bandwidth is not measured, only the weights in main memory count.
    """

    bandwidth: measurements.Measurement  # GB/s
    bytes_per_token: int  # read at this bandwidth
    bytes_on_gpu: int  # read from a GPU in addition, at an unknown bandwidth
    plain: float | None  # None: the GPU reads all
    tau: measurements.Measurement | None
    drafted: float | None  # None if tau or `plain` is not known


@dataclass(frozen=True)
class Plan:
    """Memory that a pair needs, and whether it fits. Sizes in bytes."""

    pair: str
    backend: str
    why: str  # the reason for the backend
    context: int
    trained: int
    drafter: str
    parts: Parts
    margin: int
    free: int
    what: str  # name of the memory, for messages
    fits: bool
    verdict: str  # what was reduced so that the pair fits, or what would fit
    largest_context: int
    largest_context_without_drafter: int
    quantization: str
    best_quantization: str | None
    speed: Speed

    @property
    def total(self) -> int:
        """Return the bytes of all parts, or of those on the GPU, and the margin."""
        on_gpu, beside = split_host_parts(self.parts)
        return total(on_gpu if any(name.endswith(IN_MEMORY) for name in beside) else self.parts) + self.margin


@dataclass(frozen=True)
class PlanRequest:
    """Files of a pair, or stand-ins for them, and its options."""

    pair: str
    target: Path
    drafter: Path | None
    options: Options
    used_by_other: Parts = field(default_factory=dict)  # memory of another pair that is loaded first
    kv: str | None = None  # see `PairEntry`

    def remaining(self, budget: MemoryBudget) -> MemoryBudget:
        """Return the budget without the memory of the other pair."""
        on_gpu, on_host = split_host_parts(self.used_by_other) if budget.beside else (self.used_by_other, {})
        beside = budget.beside and replace(budget.beside, free=max(budget.beside.free - total(on_host), 0))
        return replace(budget, free=max(budget.free - total(on_gpu), 0), beside=beside)

    def check_context(self, sizes: MemorySizes) -> None:
        """Raise UsageError for a context that loading would refuse."""
        check_context(self.options.context, sizes.trained, self.target.name)


def make_plan(
    spec: str,
    context: int = 0,
    backend: Backend = "auto",
    device: str = "auto",
    gpu_layers: int = -1,
    beside: str | None = None,
    kv: str = "auto",
) -> Plan:
    """Plan a pair by any spec that the registry resolves; a context of 0 means the largest that fits.

    The pair `beside` is loaded first; OutOfMemory if it does not fit alone. RegistryOnly if the hub is unreachable.
    """
    used_by_other: Parts = {}
    if beside is not None:
        other = make_plan(beside, 0, backend, device, gpu_layers, kv=kv)
        if not other.fits:
            raise OutOfMemory(f"{other.pair} does not fit alone: {other.verdict}")
        used_by_other = {name: size for name, size in other.parts.items() if name != PROGRAM}
    pair = load_registry().resolve(spec, use_hub=True)
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet; see `localdflash models show {pair.id}`")
    with cached_headers(), TemporaryDirectory(prefix="localdflash-plan-") as folder:
        target, drafter = _files_or_stand_ins(pair, Path(folder))
        options = Options(pair.id, backend, context=context, device=device, gpu_layers=gpu_layers, kv=kv)
        check_device(options)
        request = PlanRequest(pair.id, target, drafter, options, used_by_other, pair.kv)
        if backend != "auto":
            return PLANNERS[backend](request, "requested")
        return _automatic(request)


def _automatic(request: PlanRequest) -> Plan:
    """Plan the backend that `auto` would choose; see `localdflash.loading.automatic`."""
    options, why = request.options, "no GPU was requested"
    if options.gpu_layers < 0 and (options.device in ANY_GPU or means_gpu(options.device)):
        try:
            return _on_cuda(request, "the GPU can run it, if the engine passes its check there")
        except (NoDevice, ModelError) as error:
            reason = str(error).partition("; ")[0]  # without the remedy: another backend runs the pair
            why = f"no CUDA engine: {reason}"
    if options.device not in ("auto", "cpu"):
        return _on_llamacpp(request, "requested")
    if options.device == "auto" and options.gpu_layers and gpu_is_there():
        try:
            on_gpu = _on_llamacpp(replace(request, options=replace(options, device="gpu")), f"a GPU can run it; {why}")
            if on_gpu.fits:
                return on_gpu
            why = f"no GPU with llama.cpp: {on_gpu.verdict}"
        except ModelError as error:
            why = f"no GPU with llama.cpp: {error}"
    choice = likely_engine(TimingCase(request.target, _preferred_file(request.drafter, ".gguf")))
    on_processor = replace(request, options=replace(options, device="cpu"))
    return PLANNERS[choice.backend](on_processor, f"{choice.reason}; {why}")


def _files_or_stand_ins(pair: PairEntry, folder: Path) -> tuple[Path, Path | None]:
    """Return the files of target and drafter, or stand-ins in `folder` for files that are still on the hub."""
    require_local_files(pair)
    missing, drafter = missing_files(pair), pair.drafter
    try:
        missing_parts = set(pair.target.parts) & set(missing)
        target = stand_in(pair.target, folder) if missing_parts else pair.target.path
        if drafter is None:
            return target, None
        is_remote = not {*drafter.parts, drafter.config}.isdisjoint(missing)
        return target, drafter_stand_in(drafter, folder) if is_remote else drafter.path
    except Unreachable as error:
        if not pair.memory_gb:
            raise
        raise RegistryOnly(str(error), pair) from error


class RegistryOnly(Unreachable):
    """The hub is unreachable, but the registry has the memory that the pair needs (exit code 1)."""

    def __init__(self, why: str, pair: PairEntry) -> None:
        super().__init__(why)
        self.pair = pair


@dataclass(frozen=True)
class RegistryPlan:
    """Plan by the registry alone: bytes to run at a small context, and free bytes on this machine."""

    pair: str
    memory: int
    free: int
    fits: bool


def plan_by_registry(pair: PairEntry) -> RegistryPlan:
    """Compare the memory in a pair's registry entry with the free memory of this machine."""
    memory, free = int((pair.memory_gb or 0) * 1e9), system_budget().free
    return RegistryPlan(pair.id, memory, free, memory <= free)


def _preferred_file(drafter: Path | None, preferred: str) -> Path | None:
    """Return the drafter's file with the preferred suffix if it exists, else the given one."""
    other = drafter and drafter.with_suffix(preferred)
    return other if other and other.is_file() else drafter


def _on_cpu(request: PlanRequest, why: str) -> Plan:
    from localdflash.backends.cpu.cpu_kv_cache import choose_kv_format
    from localdflash.backends.cpu.cpu_sizes import CpuSizes

    kv_format = choose_kv_format(request.options.kv, request.kv)
    sizes = CpuSizes(request.target, _preferred_file(request.drafter, ".gguf"), kv=kv_format)
    request.check_context(sizes)
    return _plan(request, "cpu", why, sizes, system_budget(), measurements.bandwidth(), program_bytes(False))


def _on_llamacpp(request: PlanRequest, why: str) -> Plan:
    extras.require("llama", "backend llama.cpp")
    from localdflash.backends.llamacpp.llama_sizes import LlamaCppSizes, tensors_read_in_memory
    from localdflash.backends.llamacpp.placement import ALL_LAYERS, PROCESSOR, Placement
    from localdflash.backends.llamacpp.placing import choose_gpu, plan_placement

    target, device = request.target, choose_gpu(request.options)
    drafter = _preferred_file(request.drafter, ".gguf")
    placement, verdict, fits = PROCESSOR, "", True
    if device:
        try:
            plan = plan_placement(target, drafter, request.options)
            placement = plan.placement
            verdict = plan.notice or (plan.fit.notice if plan.fit else "")
        except OutOfMemory as error:
            placement, verdict, fits = Placement(device, ALL_LAYERS), str(error), False
    with LlamaCppSizes(target, drafter, placement, request.options.kv) as sizes:
        request.check_context(sizes)
        program = program_bytes(drafter is not None and drafter.suffix == ".safetensors")
        budget = placement.device.budget() if placement.device else system_budget()
        made = _plan(request, "llama.cpp", why, sizes, budget, measurements.bandwidth(), program, verdict, fits)
    if not placement.device or placement.device.integrated:
        return made
    header = read_header(target)
    in_memory = replace(header, tensors=tensors_read_in_memory(header, placement))
    return replace(made, speed=_with_gpu(made.speed, bytes_per_token(in_memory), made.parts))


def _on_cuda(request: PlanRequest, why: str) -> Plan:
    budget = gpu_budget(request.options.device)
    from localdflash.backends.cuda.cuda_sizes import CudaSizes

    sizes = CudaSizes(request.target, _preferred_file(request.drafter, ".safetensors"), request.options.kv)
    bandwidth = measurements.bandwidth(on_gpu=True)
    request.check_context(sizes)
    return _plan(request, "cuda", why, sizes, budget, bandwidth)


PLANNERS: Mapping[Backend, Callable[[PlanRequest, str], Plan]] = {
    "cpu": _on_cpu,
    "cuda": _on_cuda,
    "llama.cpp": _on_llamacpp,
}


def _plan(
    request: PlanRequest,
    backend: str,
    why: str,
    sizes: MemorySizes,
    memory: MemoryBudget,
    bandwidth: measurements.Measurement,
    program: int = 0,
    verdict: str = "",
    fits: bool = True,
) -> Plan:
    """Plan a pair on a backend; `program`: bytes of this process, `verdict` and `fits`: result of the GPU placement."""
    budget, context, full = request.remaining(memory), request.options.context, sizes.drafters[0]
    try:
        chosen_fit = fit(sizes, budget, context)
        verdict = verdict or chosen_fit.notice
    except OutOfMemory as error:
        requested = context or sizes.trained
        chosen_fit, fits, verdict = Fit(full, requested, sizes.parts(requested, full)), False, verdict or str(error)
    header = read_header(request.target)
    drafting = total(chosen_fit.parts) - total(sizes.parts(chosen_fit.context, NO_DRAFTER))
    smallest = budget if fits else replace(budget, free=budget.free + drafting)
    return Plan(
        pair=request.pair,
        backend=backend,
        why=why,
        context=chosen_fit.context,
        trained=sizes.trained,
        drafter=chosen_fit.drafter,
        parts=chosen_fit.parts | ({PROGRAM: program} if program else {}),
        margin=budget.margin,
        free=budget.free + (0 if budget.beside else program),
        what=budget.what,
        fits=fits,
        verdict=verdict,
        largest_context=largest_context(sizes, full, budget, sizes.trained),
        largest_context_without_drafter=largest_context(sizes, NO_DRAFTER, budget, sizes.trained),
        quantization=quantization(header),
        best_quantization=best_quantization(chosen_fit.parts, smallest, weights_of(*count_weights(header))),
        speed=_speed(request.pair, header, chosen_fit, bandwidth),
    )


def _speed(pair: str, header: GGUFHeader, chosen_fit: Fit, bandwidth: measurements.Measurement) -> Speed:
    token_bytes = bytes_per_token(header)
    plain = tokens_per_second(bandwidth.value, token_bytes)
    tau = measurements.recall(f"tau of {pair}") if chosen_fit.drafter != NO_DRAFTER else None
    if tau is None:
        return Speed(bandwidth, token_bytes, 0, plain, None, None)
    drafted = tau.value * tokens_per_second(bandwidth.value, token_bytes + chosen_fit.parts.get(DRAFTER, 0))
    return Speed(bandwidth, token_bytes, 0, plain, tau, drafted)


def _with_gpu(speed: Speed, in_memory: int, parts: Parts) -> Speed:
    """Return the speed if only `in_memory` bytes per token are read from main memory, the others from a GPU."""
    drafted, plain = None, tokens_per_second(speed.bandwidth.value, in_memory) if in_memory else None
    if speed.tau and in_memory:
        read = in_memory + parts.get(DRAFTER + IN_MEMORY, 0)
        drafted = speed.tau.value * tokens_per_second(speed.bandwidth.value, read)
    return replace(
        speed, bytes_per_token=in_memory, bytes_on_gpu=speed.bytes_per_token - in_memory, plain=plain, drafted=drafted
    )


def stand_in(source: FileSource, folder: Path) -> Path:
    """Create a stand-in for a GGUF in `folder` and return its path; for a packaged file, the installed one."""
    if source.adapted:
        raise Unreachable(f"{source.name}: made on this machine by `localdflash models pull`; pull it first")
    if source.package:
        if path := packages.find_installed_file(source.package, source.file):
            return path
        raise Unreachable(f"{source.name}: not here, and pip can only download the whole package; pull it first")
    for part in source.parts:
        remote, head, header = read_head(part)
        with (folder / part.path.name).open("wb") as stream:
            stream.write(head.fetched)
            if factors := header.tensors.get(ROPE_FACTORS):  # weights that a shape is read from
                stream.seek(factors.offset)
                stream.write(hub.read_range(remote, factors.offset, factors.nbytes))
            stream.truncate(remote.size)
    return folder / source.path.name


def drafter_stand_in(source: DrafterSource, folder: Path) -> Path:
    """Create a stand-in for a drafter; for safetensors its config.json alone, which has the shapes."""
    if source.config is None:
        return stand_in(source, folder)
    assert source.config.repository
    remote = hub.look_up(source.config.repository, source.config.file, source.config.revision)
    if remote.size > MAX_JSON_BYTES:
        raise ModelError(f"{remote.name}: not a drafter's configuration (expected at most {MAX_JSON_BYTES >> 20} MiB)")
    (folder / "config.json").write_bytes(hub.read_range(remote, 0, remote.size))
    return folder / source.path.name
