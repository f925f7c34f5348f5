"""Choice between the CPU engine and llama.cpp: by stored timings, else a timing, else by rule."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu import cpu_sizes as cpu
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import clamp
from localdflash.loading import engine_choice as choosing
from localdflash.loading.engine_choice import (
    HOST_BACKENDS,
    HostBackend,
    HostChoice,
    TimingCase,
    choose_engine,
    likely_engine,
)
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry.pair_entry import LocalPair

SetTimes = Callable[..., list[str]]


@pytest.fixture
def case(tmp_path: Path) -> TimingCase:
    for name in ("target.gguf", "drafter.gguf"):
        (tmp_path / name).write_bytes(bytes(1000))
    return TimingCase(tmp_path / "target.gguf", tmp_path / "drafter.gguf", threads=1)


def choose(case: TimingCase, options: Options) -> HostChoice:
    files = LocalPair("a pair", case.target, case.drafter, None, None)
    return choose_engine(files, replace(options, threads=case.threads, draft=case.draft))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Pretend an idle machine whose CPU engine runs every pair, with three times the memory of the pair's files."""
    engine = SimpleNamespace(instruction_sets=["avx2", "portable"])
    monkeypatch.setattr(cpu_library, "_load_or_explain", lambda: engine)
    monkeypatch.setattr(cpu, "CpuSizes", lambda *_: None)
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(6000, 0, "memory"))
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    return engine


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> SetTimes:
    """Return a function that fakes the measured times; it returns the list of timed backends."""

    def set_times(**times: float) -> list[str]:
        timed_backends: list[str] = []

        def time(engine: HostBackend, _files: LocalPair, _options: Options) -> float:
            timed_backends.append(engine)
            return times.get(engine.replace(".", ""), 0.0)

        monkeypatch.setattr(choosing, "_time_engine", time)
        return timed_backends

    return set_times


@pytest.mark.parametrize(("cpu_ms", "llama_ms", "faster"), [(1.0, 2.0, "cpu"), (2.0, 1.0, "llama.cpp")])
def test_the_faster_engine_is_chosen_and_timed_once(
    cpu_ms: float, llama_ms: float, faster: str, case: TimingCase, timed: SetTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed_backends = timed(cpu=cpu_ms, llamacpp=llama_ms)
    choice = choose(case, Options())
    assert choice.backend == faster
    assert all(f"{ms:.2g} ms" in choice.reason for ms in (cpu_ms, llama_ms))
    monkeypatch.setattr(cpu, "CpuSizes", lambda *_: pytest.fail("a timing was recalled by reading the files"))
    assert choose(case, Options()) == likely_engine(case) == choice
    assert timed_backends == ["llama.cpp", "cpu"]


def test_changed_files_or_options_are_timed_again(case: TimingCase, timed: SetTimes, machine: SimpleNamespace) -> None:
    measurements.remember(case.name("llama.cpp"), 99.0, "before an update of the CPU engine")
    timed_backends = timed(cpu=1.0, llamacpp=2.0)
    assert choose(case, Options()).backend == "cpu"
    other_threads = clamp(0)[0]
    others = [replace(case, draft=False), replace(case, drafter=None)]
    others += [replace(case, threads=other_threads)] if other_threads > 1 else []
    for other in others:
        choose(other, Options())
    os.utime(case.target, (1, 1))
    choose(case, Options())
    assert timed_backends == ["llama.cpp", "cpu"] * (len(others) + 2)
    before = case.name("cpu"), case.name("llama.cpp")
    machine.instruction_sets.insert(0, "avxvnni")
    assert (case.name("cpu") != before[0], case.name("llama.cpp") == before[1]) == (True, True)


@pytest.mark.parametrize(
    ("best", "free_bytes", "load", "backend"),
    [("avx2", 5999, 0.5, "cpu"), ("portable", 5999, 0.5, "llama.cpp"), ("avx2", 6000, 1e3, "cpu")],
)
def test_large_files_and_busy_machines_are_chosen_by_rule(
    best: str, free_bytes: int, load: float, backend: str, case: TimingCase, timed: SetTimes, machine: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    machine.instruction_sets[0] = best
    timed_backends = timed(cpu=9.0, llamacpp=1.0)
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(free_bytes, 0, "memory"))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    choice = choose(case, Options())
    assert (choice.backend, choice.reason, timed_backends) == (backend, choosing.NOT_TIMED, [])


class TestForReal:
    @pytest.fixture(autouse=True)
    def machine(self, cpu_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pretend that this machine is idle."""
        monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.0, 0.0))

    def test_a_pair_is_timed_only_at_its_first_load(self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = Options(str(tiny_pair / "target.gguf"), "auto", threads=1)
        case = TimingCase(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf", 1)
        with LoadedPair(options) as loaded:
            first, notice = loaded.backend, loaded.notice
        times = {backend: measurements.recall(case.name(backend)) for backend in HOST_BACKENDS}
        assert notice == ""
        assert first == min(times, key=lambda backend: times[backend].value)  # type: ignore[union-attr]
        monkeypatch.setattr(choosing, "_time_engine", lambda *_: pytest.fail("timed again"))
        with LoadedPair(options) as loaded:
            assert loaded.backend == first
