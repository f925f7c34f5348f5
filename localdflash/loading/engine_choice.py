"""Choose the engine that runs a pair on the processor, ours or llama.cpp: the faster one as timed here, else by rule.

Both are timed when a pair is loaded for the first time, one after the other, and the result is kept: later loads only
recall it. If the file is too large for two loads in a row, or the machine too busy for a timing worth keeping, a rule
decides instead.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from localdflash.backends.cpu import cpu_library
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import clamp, physical_cores
from localdflash.base.system import limits
from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target
from localdflash.loading.backends import load_on
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.weights.split import size_of, stats_of

HostBackend = Literal["cpu", "llama.cpp"]  # of the backends, those that `auto` chooses between
HOST_BACKENDS: tuple[HostBackend, ...] = ("llama.cpp", "cpu")
NOT_TIMED = "not timed yet"
WIDTHS = (1, 4, 8)  # rows of the forwards that are timed
CONTEXT = 512  # tokens, at most, of the pairs that are timed
SECONDS = 0.3  # to repeat the timing for
LEAST = 2  # rounds: the first one may have found the weights on the disk
LARGEST_SHARE = 3  # a file larger than this part of the free memory is not loaded twice to be timed
ACCEPTED = 0.8  # probability of a drafted token to be right that engines are compared with


@dataclass(frozen=True)
class HostChoice:
    """An engine, with the reason in a few words."""

    backend: HostBackend
    why: str


@dataclass(frozen=True)
class Case:
    """What is run, and how: everything that decides how fast it is."""

    target: Path
    drafter: Path | None
    threads: int = 0
    draft: bool = True  # from the text at least, where there is no drafter

    def name(self, backend: HostBackend) -> str:
        """The name under which its milliseconds per token are kept."""
        files = [f"{part.name} {size} {changed}" for path in self._files() for part, size, changed in stats_of(path)]
        how = f"{clamp(self.threads)[0]} threads, {'drafting' if self.draft else 'plain'}"
        if backend == "llama.cpp":
            by = f"llama-cpp-python {version('llama-cpp-python')}"
        else:
            by = f"cpu, {cpu_library.load().instruction_sets[0]}"
        return f"ms a token of {', '.join(files)}, {how}, {by}, localdflash {version('localdflash')}"

    def size(self) -> int:
        """Bytes of the files."""
        return sum(map(size_of, self._files()))

    def _files(self) -> list[Path]:
        return [path for path in (self.target, self.drafter) if path and path.exists()]  # a stand-in may have none


def likely(case: Case) -> HostChoice:
    """The engine to load: the faster of those that were timed; else ours, unless it has no fast instructions here."""
    try:
        return _recalled(case) or _by_rule(case)
    except (ModelError, NoDevice) as error:
        return HostChoice("llama.cpp", f"not cpu: {error}")


def _recalled(case: Case) -> HostChoice | None:
    """The faster one, if both were timed: one alone is older than an update of the other."""
    found = {backend: measurements.recall(case.name(backend)) for backend in HOST_BACKENDS}
    times: dict[HostBackend, float] = {backend: known.value for backend, known in found.items() if known}
    if len(times) < len(HOST_BACKENDS):
        return None
    said = " and ".join(f"{ms:.2g} ms a token on {backend}" for backend, ms in times.items())
    return HostChoice(min(times, key=lambda backend: times[backend]), f"{said}, timed here")


def _by_rule(case: Case) -> HostChoice:
    """Without timings; what the CPU engine says of files that it cannot run is raised."""
    from localdflash.backends.cpu.cpu_sizes import CpuSizes

    CpuSizes(case.target, case.drafter, case.threads)
    return HostChoice("llama.cpp" if cpu_library.load().instruction_sets[0] == "portable" else "cpu", NOT_TIMED)


def choose(files: LocalPair, options: Options) -> HostChoice:
    """The engine to load; both are timed first if that is needed and possible."""
    drafter = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    case = Case(files.target, drafter, options.threads, options.draft)
    choice = likely(case)
    if choice.why != NOT_TIMED or case.size() * LARGEST_SHARE > free.system_budget().free or _busy():
        return choice
    context = min(CONTEXT, options.context or CONTEXT)
    # To find the rows of llama.cpp that agree takes longer than a first start should.
    brief = replace(options, context=context, progress=None, costs=_unknown, rows="fast")
    found = {engine: _time_engine(engine, files, brief) for engine in HOST_BACKENDS}
    if not all(found.values()):  # it may work next time: nothing is kept, and where ours fails again, it says why
        return HostChoice("cpu", NOT_TIMED)
    for engine, ms in found.items():
        measurements.remember(case.name(engine), ms, f"forwards of {', '.join(map(str, WIDTHS))} rows")
    return likely(case)


def _busy() -> bool:
    """Whether more programs want to run than there are cores: a timing would then say nothing."""
    return limits.load_average() > len(physical_cores())


def ms_per_token(costs: Controller, drafters: Sequence[Drafter], widest: int) -> float:
    """Expected milliseconds: one share of the tokens is decoded plainly, one comes from the drafts of each drafter."""
    plain = costs.predict_verify_ms(1)
    shares = [plain]
    for drafter in drafters:
        expected, best = 1.0, plain
        for nodes in range(1, min(drafter.max_draft_tokens, widest - 1) + 1):
            expected += ACCEPTED**nodes
            best = min(
                best, (costs.predict_verify_ms(nodes + 1) + costs.predict_draft_ms(drafter.name, nodes)) / expected
            )
        shares.append(best)
    return sum(shares) / len(shares)


def _unknown(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """What a pair that is only timed is given: it generates nothing."""
    return Controller({1: 1.0, 2: 1.0}, {drafter.name: 0.0 for drafter in drafters})


def _time_engine(engine: HostBackend, files: LocalPair, options: Options) -> float:
    """Milliseconds per token of a pair; 0 if it cannot be loaded."""
    try:
        running = load_on(engine, files, options)
    except LocaldflashError:
        return 0.0
    assert running.host
    with closing(running):
        return _ms(running.host.target, running.host.drafters)


def _ms(target: Target, drafters: Sequence[Drafter]) -> float:
    """The fastest of some rounds: a disturbance only ever makes one longer."""
    found, began = list[float](), time.perf_counter()
    while len(found) < LEAST or time.perf_counter() - began < SECONDS:
        costs = calibrate(target, drafters, WIDTHS, rounds=1)
        found.append(ms_per_token(costs, drafters, WIDTHS[-1]))
    return min(found)
