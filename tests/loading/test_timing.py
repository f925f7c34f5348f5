"""Which backend runs a pair on the processor: timed once, recalled later, a rule where timing would cost too much."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu import cpu_sizes as cpu
from localdflash.base.errors import ModelError
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import clamp
from localdflash.engine.controller import Controller
from localdflash.engine.lookup import LookupDrafter
from localdflash.loading import engine_choice as choosing
from localdflash.loading.engine_choice import (
    ACCEPTED,
    HOST_BACKENDS,
    Case,
    HostBackend,
    HostChoice,
    choose,
    likely,
    ms_per_token,
)
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry.pair_entry import LocalPair

Times = dict[str, float]
SetTimes = Callable[..., list[str]]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    for name in ("target.gguf", "drafter.gguf"):
        (tmp_path / name).write_bytes(bytes(1000))
    return Case(tmp_path / "target.gguf", tmp_path / "drafter.gguf", threads=1)


def chosen(case: Case, options: Options) -> HostChoice:
    files = LocalPair("a pair", case.target, case.drafter, None, None, None)
    return choose(files, replace(options, threads=case.threads, draft=case.draft))


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine of our own that runs every pair, and 3000 bytes for every pair of 1000."""
    engine = SimpleNamespace(instruction_sets=["avx2", "portable"])
    monkeypatch.setattr(cpu_library, "_load", lambda: engine)
    monkeypatch.setattr(cpu, "CpuSizes", lambda *_: None)
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(6000, 0, "memory"))
    return engine


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.0, 0.0))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> SetTimes:
    """Sets what timing finds; the backends that were timed, in order."""

    def set_times(**found: float) -> list[str]:
        asked: list[str] = []

        def time(engine: HostBackend, _files: LocalPair, _options: Options) -> float:
            asked.append(engine)
            return found.get(engine.replace(".", ""), 0.0)

        monkeypatch.setattr(choosing, "_time_engine", time)
        return asked

    return set_times


def test_a_first_round_that_finds_the_weights_on_the_disk_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([300.0, 2.0])
    monkeypatch.setattr(choosing, "calibrate", lambda *_, **__: Controller({1: next(rounds)}, {}))
    monkeypatch.setattr(choosing, "SECONDS", 0.0)
    assert choosing._ms(None, ()) == 2.0  # type: ignore[arg-type]


@pytest.mark.parametrize(("cpu_ms", "llama_ms", "faster"), [(1.0, 2.0, "cpu"), (2.0, 1.0, "llama.cpp")])
def test_the_faster_one_is_taken_and_timed_once(
    cpu_ms: float, llama_ms: float, faster: str, case: Case, timed: SetTimes
) -> None:
    asked = timed(cpu=cpu_ms, llamacpp=llama_ms)
    choice = chosen(case, Options())
    assert choice.backend == faster
    assert choice.why == f"{llama_ms:.2g} ms a token on llama.cpp and {cpu_ms:.2g} ms a token on cpu, timed here"
    assert asked == ["llama.cpp", "cpu"]
    assert chosen(case, Options()) == likely(case) == choice
    assert asked == ["llama.cpp", "cpu"]


def test_what_was_timed_is_recalled_without_reading_the_files(
    case: Case, timed: SetTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read to be timed, and reading them takes a while."""
    timed(cpu=1.0, llamacpp=2.0)
    choice = chosen(case, Options())
    monkeypatch.setattr(cpu, "CpuSizes", lambda *_: pytest.fail("it read them"))
    assert chosen(case, Options()) == choice


@pytest.mark.parametrize("ms", [{"cpu": 9.0}, {"llamacpp": 9.0}])
def test_where_one_cannot_be_timed_ours_is_tried_and_both_are_timed_again(
    ms: Times, case: Case, timed: SetTimes, machine: SimpleNamespace
) -> None:
    """It may have failed for this once; and where ours cannot be loaded at all, loading it says why."""
    machine.instruction_sets[0] = "portable"
    asked = timed(**ms)
    assert [chosen(case, Options()).backend for _ in range(2)] == ["cpu", "cpu"]
    assert asked == ["llama.cpp", "cpu"] * 2


@pytest.mark.parametrize("other", HOST_BACKENDS)
def test_after_an_update_of_one_engine_both_are_timed_again(other: HostBackend, case: Case, timed: SetTimes) -> None:
    measurements.remember(case.name(other), 99.0, "before the update")
    asked = timed(cpu=1.0, llamacpp=2.0)
    assert chosen(case, Options()).backend == "cpu"
    assert asked == ["llama.cpp", "cpu"]


def test_what_decides_the_speed_is_timed_anew(case: Case, timed: SetTimes, machine: SimpleNamespace) -> None:
    asked = timed(cpu=1.0, llamacpp=2.0)
    chosen(case, Options())
    other_threads = clamp(0)[0]
    others = [replace(case, draft=False), replace(case, drafter=None)]
    others += [replace(case, threads=other_threads)] if other_threads > 1 else []
    for other in others:
        asked.clear()
        chosen(other, Options())
        assert len(asked) == 2
    os.utime(case.target, (1, 1))
    asked.clear()
    chosen(case, Options())
    assert len(asked) == 2


def test_another_instruction_set_is_another_engine(case: Case, timed: SetTimes, machine: SimpleNamespace) -> None:
    timed(cpu=1.0, llamacpp=2.0)
    before = case.name("cpu"), case.name("llama.cpp")
    machine.instruction_sets.insert(0, "avxvnni")
    assert case.name("cpu") != before[0]
    assert case.name("llama.cpp") == before[1]


@pytest.mark.parametrize(("best", "backend"), [("avx2", "cpu"), ("portable", "llama.cpp")])
def test_a_file_of_more_than_a_third_of_the_memory_is_not_loaded_twice(
    best: str, backend: str, case: Case, timed: SetTimes, machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.instruction_sets[0] = best
    asked = timed(cpu=9.0, llamacpp=1.0)
    monkeypatch.setattr(free, "system_budget", lambda: MemoryBudget(5999, 0, "memory"))
    choice = chosen(case, Options())
    assert (choice.backend, choice.why, asked) == (backend, "not timed yet", [])


def test_on_a_busy_machine_nothing_is_timed(case: Case, timed: SetTimes, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = timed(cpu=9.0, llamacpp=1.0)
    monkeypatch.setattr(os, "getloadavg", lambda: (clamp(0)[0] + 0.1, 0.0, 0.0))
    choice = chosen(case, Options())
    assert (choice.backend, choice.why, asked) == ("cpu", "not timed yet", [])


def test_what_our_engine_does_not_run_is_llama_cpps_without_timing(
    case: Case, timed: SetTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ModelError("target.gguf: only 'qwen3' models run here")

    monkeypatch.setattr(cpu, "CpuSizes", refuse)
    asked = timed(cpu=1.0, llamacpp=2.0)
    choice = chosen(case, Options())
    assert (choice.backend, asked) == ("llama.cpp", [])
    assert choice.why == "not cpu: target.gguf: only 'qwen3' models run here"


def test_pairs_are_timed_with_a_short_context_and_as_asked_for(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Options] = []

    def time(_backend: HostBackend, _files: LocalPair, options: Options) -> float:
        seen.append(options)
        return 0.0

    monkeypatch.setattr(choosing, "_time_engine", time)
    chosen(replace(case, draft=False), Options("mine", context=100_000, progress=lambda *_: None))
    chosen(case, Options("mine", context=64))
    assert [options.context for options in seen] == [512, 512, 64, 64]
    assert {(options.pair, options.threads, options.draft) for options in seen[:2]} == {("mine", 1, False)}
    assert all(options.progress is None for options in seen)


class TestMillisecondsAToken:
    FLAT, STEEP = {1: 1.0, 4: 1.0, 8: 1.0}, {1: 1.0, 4: 4.0, 8: 8.0}

    def test_a_flat_verify_is_worth_its_drafts(self) -> None:
        tokens = sum(ACCEPTED**n for n in range(8))
        found = ms_per_token(Controller(self.FLAT, {}), [LookupDrafter()], 8)
        assert found == pytest.approx((1.0 + 1.0 / tokens) / 2)

    def test_drafts_that_do_not_pay_are_left_out(self) -> None:
        assert ms_per_token(Controller(self.STEEP, {}), [LookupDrafter()], 8) == 1.0
        assert ms_per_token(Controller(self.FLAT, {"lookup": 99.0}), [LookupDrafter()], 8) == 1.0

    def test_no_more_nodes_count_than_a_forward_was_timed_with(self) -> None:
        tokens = sum(ACCEPTED**n for n in range(4))
        found = ms_per_token(Controller(self.FLAT, {}), [LookupDrafter()], 4)
        assert found == pytest.approx((1.0 + 1.0 / tokens) / 2)


class TestForReal:
    @pytest.fixture(autouse=True)
    def machine(self, cpu_engine: None) -> None:
        """This one."""

    def test_a_pair_is_timed_at_its_first_load_alone(self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        options = Options(str(tiny_pair / "target.gguf"), "auto", threads=1)
        case = Case(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf", 1)
        with LoadedPair(options) as loaded:
            first, notice = loaded.backend, loaded.notice
        assert notice == ""
        times = {backend: measurements.recall(case.name(backend)) for backend in HOST_BACKENDS}
        assert first == min(times, key=lambda backend: times[backend].value)  # type: ignore[union-attr]
        monkeypatch.setattr(choosing, "_time_engine", lambda *_: pytest.fail("timed again"))
        with LoadedPair(options) as loaded:
            assert loaded.backend == first
