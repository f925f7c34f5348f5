"""Answers launch only kernels that were compiled when the pair was loaded.

Launches are recorded and not run, except bookkeeping, which references run: so long histories are fast.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.runtime._async_compile import active_mode

from localdflash.backends.cuda import runner
from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import KERNELS, REFERENCES, Ops
from localdflash.backends.cuda.stepper import StepMode
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.launch import KernelLaunch, collect_launches
from tests.support.cuda_pairs import load_on_cpu
from tests.support.tiny_models import EXPERTS, SHAPE, write_drafter, write_target

CHUNK = 16  # of a chunk of attention, as the runner reckons: contexts of 128 and 512 tokens are long ones
CONTEXT = 700
BOOKKEEPING = ("begin", "next_tokens", "propose", "caught_up", "lookup", "accept")
SAMPLED = SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.01, seed=3)
PENALISED = SamplingParams(repetition_penalty=1.3, penalty_window=64)
SHIFTED = SamplingParams(presence_penalty=0.5)
ANSWERS = [("plain", SHIFTED), ("lookup", PENALISED), ("block", SamplingParams()), ("block", SAMPLED)]


@dataclass
class World:
    """A pair, its compiled kernels, and its launches since."""

    pair: CudaPair
    compiled: set[Hashable]
    launched: set[Hashable]

    def check(self) -> None:
        """Assert that every launch was compiled at load."""
        assert self.launched
        names = sorted({str(variant) for variant in self.launched - self.compiled})
        assert not names, names[0]


def noting(name: str, launched: set[Hashable]) -> Callable[..., None]:
    """Return an operation that records its launches; heads choose token 0."""

    def run(*arguments: Any, **options: Any) -> None:
        with collect_launches() as launches:
            getattr(KERNELS, name)(*arguments, **options)
        launched.update(launch.variant for launch in launches)
        if name in BOOKKEEPING:
            getattr(REFERENCES, name)(*arguments, **options)

    return run


def at_load(pair: CudaPair, modes: tuple[StepMode, ...]) -> list[KernelLaunch]:
    """Return the launches that the runner compiles; none is recorded and nothing is computed."""
    stacks = [pair.stepper.stack, *([pair.stepper.drafter.stack] if pair.stepper.drafter else [])]
    with pytest.MonkeyPatch.context() as patch:
        for part in (pair.stepper, *stacks):
            patch.setattr(part, "ops", KERNELS)
        return pair.runner.launches(modes)


@pytest.fixture(scope="module", params=["dense", "experts"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A dense pair with a drafter, or a mixture of experts without."""
    drafts, folder = request.param == "dense", tmp_path_factory.mktemp("tiny")
    shape = replace(SHAPE, context_length=1024, **({} if drafts else EXPERTS))
    target = write_target(folder / "target.gguf", shape)
    drafter = write_drafter(folder, shape) if drafts else None
    launched = set[Hashable]()
    ops = Ops(**{field.name: noting(field.name, launched) for field in fields(Ops)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.kernels.cuda.attention.CHUNK", CHUNK)
        pair = load_on_cpu(target, drafter, ops, context=CONTEXT)
        modes: tuple[StepMode, ...] = ("plain", "lookup", "block") if drafts else ("plain", "lookup")
        compiled = {launch.variant for launch in at_load(pair, modes)}
        yield World(pair, compiled, launched)


def prompt(length: int) -> list[int]:
    return [(7 * i + i // 9) % 150 for i in range(length)]


def write(pair: CudaPair, ids: list[int], count: int, params: SamplingParams, **settings: Any) -> list[int]:
    request = Request(ids, count, params, **settings)
    return [token for step in generate(pair, request) for token in step.tokens]


@pytest.mark.parametrize(("mode", "params"), ANSWERS, ids=str)
def test_answers_of_any_length_launch_compiled_kernels_only(
    world: World, mode: StepMode, params: SamplingParams
) -> None:
    pair = world.pair.with_mode(mode if world.pair.stepper.drafter or mode != "block" else "lookup")
    pair.forget()
    world.launched.clear()
    for length in (5, 240, 640):  # chunks of a prompt, and over the borders of attention's sizes
        write(pair, prompt(length), 20, params)
    world.check()


@pytest.fixture
def graphed(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Let the pair run by graphs, none captured yet; return the list of captured sequences."""
    captured = list[Callable[[], None]]()

    def capture(sequence: Callable[[], None]) -> Any:
        captured.append(sequence)
        return SimpleNamespace(replay=sequence)

    runner = world.pair.runner
    monkeypatch.setattr(runner, "_on_device", True)
    monkeypatch.setattr(runner, "_captures", True)
    monkeypatch.setattr(runner, "_graphs", {})
    monkeypatch.setattr(runner, "_capture", capture)
    monkeypatch.setattr(runner, "launches", lambda _modes: [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda: None, synchronize=lambda: None))
    monkeypatch.setattr("localdflash.backends.cuda.runner.compile_all", lambda _launches, _compiling: None)
    return captured


def test_no_answer_waits_for_a_graph_and_capturing_changes_no_state(
    world: World, graphed: list[Callable[[], None]]
) -> None:
    pair = world.pair
    pair.forget()
    before = pair.stepper.state.clone()
    pair.runner.prepare(("plain", *pair.modes.records))
    assert torch.equal(pair.stepper.state, before)
    many = len(graphed)
    assert many == len(pair.runner._graphs) > 10
    for params in (SamplingParams(), SAMPLED):
        for length in (126, 640):
            write(pair, prompt(length), 20, params)
            write(pair, prompt(length), 9, params, draft=False)
    assert len(graphed) == many


def test_each_variant_is_compiled_once_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = list[Hashable](), list[tuple[int, int]]()

    def compiled(launch: KernelLaunch) -> None:
        made.append(launch.variant)
        active_mode.get().submit(launch.variant, lambda: None, lambda _kernel: None)

    monkeypatch.setattr(KernelLaunch, "compile", compiled)
    monkeypatch.setenv(runner.CACHE_VARIABLE, "elsewhere")
    launches = at_load(world.pair, ("plain", "lookup"))
    runner.compile_all(launches, lambda done, total: told.append((done, total)))
    assert len(made) == len(set(made)) == len({launch.variant for launch in launches}) < len(launches)
    assert told == [(done, len(made)) for done in range(len(made) + 1)]


def test_compiled_kernels_are_cached_in_our_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv(runner.CACHE_VARIABLE, "")  # so that it is set back
    monkeypatch.delenv(runner.CACHE_VARIABLE)
    runner.set_triton_cache()
    assert Path(triton.knobs.cache.dir) == home / "cache" / "triton"
    assert (home / "cache" / "triton").stat().st_mode & 0o077 == 0
    monkeypatch.setenv(runner.CACHE_VARIABLE, "/elsewhere")
    runner.set_triton_cache()
    assert triton.knobs.cache.dir == "/elsewhere"
