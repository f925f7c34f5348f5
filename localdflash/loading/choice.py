"""Chooses the engine that runs a pair on the processor, ours or llama.cpp: by what was timed here, or else by rule."""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from localdflash.backends.cpu import cpu_library
from localdflash.base.errors import ModelError, NoDevice
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import clamp
from localdflash.models.weights.split import size_of, stats_of

HostBackend = Literal["cpu", "llama.cpp"]  # of the backends, those that `auto` chooses between
HOST_BACKENDS: tuple[HostBackend, ...] = ("llama.cpp", "cpu")
NOT_TIMED = "not timed yet"


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
        return _timed(case) or _by_rule(case)
    except (ModelError, NoDevice) as error:
        return HostChoice("llama.cpp", f"not cpu: {error}")


def _timed(case: Case) -> HostChoice | None:
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
