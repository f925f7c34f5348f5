"""Choose the engine that runs a pair on the CPU: the faster one by a timing at the first load, else by rule."""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localdflash.backends.cpu import cpu_library
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice
from localdflash.base.extras import missing_module, version_of
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import clamp, core_count
from localdflash.base.system import limits
from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target
from localdflash.loading.backends import load_on
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.weights.split import count_bytes, stats_of

HostBackend = Literal["cpu", "llama.cpp"]  # the backends that `auto` chooses from on the CPU
HOST_BACKENDS: tuple[HostBackend, ...] = ("llama.cpp", "cpu")
NOT_TIMED = "not timed yet"
WIDTHS = (1, 4, 8)  # batch widths that are timed
MAX_CONTEXT = 512  # tokens of the pairs that are timed
TIMING_SECONDS = 0.3
MIN_ROUNDS = 2  # the first round may read the weights from the disk
MEMORY_PER_FILE = 3  # free memory needed for timing both engines, in sizes of the pair's files
ACCEPTANCE = 0.8  # assumed probability that a drafted token is accepted


@dataclass(frozen=True)
class HostChoice:
    """Chosen engine and the reason."""

    backend: HostBackend
    reason: str


@dataclass(frozen=True)
class TimingCase:
    """Files and options that decide the speed of a pair."""

    target: Path
    drafter: Path | None
    threads: int = 0
    draft: bool = True  # False: no drafting, not even by prompt lookup

    def name(self, backend: HostBackend) -> str:
        """Return the name under which the milliseconds per token are stored."""
        files = [f"{part.name} {size} {changed}" for path in self._files() for part, size, changed in stats_of(path)]
        mode = f"{clamp(self.threads)[0]} threads, {'drafting' if self.draft else 'plain'}"
        if backend == "llama.cpp":
            engine = f"llama-cpp-python {version_of('llama-cpp-python')}"
        else:
            engine = f"cpu, {cpu_library.load().instruction_sets[0]}"
        return f"ms a token of {', '.join(files)}, {mode}, {engine}, localdflash {version_of('localdflash')}"

    def size(self) -> int:
        """Return the files' size in bytes."""
        return sum(map(count_bytes, self._files()))

    def _files(self) -> list[Path]:
        return [path for path in (self.target, self.drafter) if path and path.exists()]  # absent: only planned


def likely_engine(case: TimingCase) -> HostChoice:
    """Return the engine to load without timing: the faster one by stored timings, else by rule."""
    if missing_module("llama"):
        return HostChoice("cpu", "llama.cpp is not installed")
    try:
        return _choose_by_timings(case) or _choose_by_rule(case)
    except (ModelError, NoDevice) as error:
        return HostChoice("llama.cpp", f"not cpu: {error}")


def _choose_by_timings(case: TimingCase) -> HostChoice | None:
    """Return the faster engine if both timings are stored; an update of one engine makes its timing unknown."""
    timings = [(stored.value, engine) for engine in HOST_BACKENDS if (stored := measurements.recall(case.name(engine)))]
    if len(timings) < len(HOST_BACKENDS):
        return None
    summary = ", ".join(f"{engine} {ms:.2g} ms per token" for ms, engine in timings)
    return HostChoice(min(timings)[1], f"measured here: {summary}")


def _choose_by_rule(case: TimingCase) -> HostChoice:
    """Return the CPU engine if it has fast instructions here, else llama.cpp; an error if it cannot run the files."""
    from localdflash.backends.cpu.cpu_sizes import CpuSizes

    CpuSizes(case.target, case.drafter, case.threads)
    return HostChoice("llama.cpp" if cpu_library.load().instruction_sets[0] == "portable" else "cpu", NOT_TIMED)


def choose_engine(files: LocalPair, options: Options) -> HostChoice:
    """Return the engine to load; if no timing is stored, time both first unless memory or processors are busy."""
    drafter = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    case = TimingCase(files.target, drafter, options.threads, options.draft)
    choice = likely_engine(case)
    is_busy = limits.load_average() > core_count()  # a timing would be wrong
    if choice.reason != NOT_TIMED or case.size() * MEMORY_PER_FILE > free.system_budget().free or is_busy:
        return choice
    context = min(MAX_CONTEXT, options.context or MAX_CONTEXT)
    # rows="fast": finding llama.cpp's bit-exact widths would take too long for a first start.
    timing_options = replace(options, context=context, progress=None, costs=_zero_costs, rows="fast")
    ms_by_engine = {engine: _time_engine(engine, files, timing_options) for engine in HOST_BACKENDS}
    if not all(ms_by_engine.values()):  # nothing is stored; if the CPU engine fails again, its load raises the reason
        return HostChoice("cpu", NOT_TIMED)
    for engine, ms in ms_by_engine.items():
        measurements.remember(case.name(engine), ms, f"batches of {', '.join(map(str, WIDTHS))} tokens")
    return likely_engine(case)


def ms_per_token(controller: Controller, drafters: Sequence[Drafter], max_width: int) -> float:
    """Return the mean milliseconds per token over decoding without drafting and drafting with each drafter."""
    baseline = controller.costs.predict_ms(1)
    ms_by_mode = [baseline]
    for drafter in drafters:
        expected, best = 1.0, baseline
        for count in range(1, min(drafter.max_draft_tokens, max_width - 1) + 1):
            expected += ACCEPTANCE**count
            step_ms = controller.costs.predict_ms(count + 1) + controller.draft_ms[drafter.name]
            best = min(best, step_ms / expected)
        ms_by_mode.append(best)
    return sum(ms_by_mode) / len(ms_by_mode)


def _zero_costs(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """Return costs for a pair that is only timed and generates nothing."""
    return Controller({1: 1.0, 2: 1.0}, {drafter.name: 0.0 for drafter in drafters})


def _time_engine(engine: HostBackend, files: LocalPair, options: Options) -> float:
    """Return the milliseconds per token of a pair in its fastest round; 0 if it cannot be loaded."""
    try:
        running = load_on(engine, files, options)
    except LocaldflashError:
        return 0.0
    assert running.host_pair
    with closing(running):
        target, drafters = running.host_pair.target, running.host_pair.drafters
        rounds, start = list[float](), time.perf_counter()
        while len(rounds) < MIN_ROUNDS or time.perf_counter() - start < TIMING_SECONDS:
            costs = calibrate(target, drafters, WIDTHS, seconds=0.0)
            rounds.append(ms_per_token(costs, drafters, WIDTHS[-1]))
    return min(rounds)
