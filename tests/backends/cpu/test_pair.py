"""Steps in one call of C++ and the rule in Python: the same drafts, tokens, times and estimates, whatever happens.

A made-up target and drafter stand in for models, and a made-up clock for time: it advances by what they are said to
cost, in steps that floats hold exactly, so that every number must be the same to the last bit.
"""

import ctypes
import random
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int32, c_void_p
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_library import MAX_ROWS, EngineTargetStruct
from localdflash.backends.cpu.cpu_pair import CpuPair
from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.engine.controller import Controller
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Step, Taps, Verification
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.usefixtures("cpu_engine")
TICK = 2.0**-14  # seconds
VOCABULARY, CONTEXT = 12, 400
GREEDY = SamplingParams(temperature=0.0)
Verify = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_int32), c_int32, c_int32, POINTER(c_int32))
Now = ctypes.CFUNCTYPE(c_double)


class World:
    """A text that every prompt goes on with, what things cost, and a clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seconds = 1.0
        self.span = self.random.randint(1, 3)  # tokens that decide the next one
        self.verify_ticks = sorted(self.random.randint(1, 60) for _ in range(MAX_ROWS + 1))
        self.draft_ticks = self.random.randint(0, 40)
        self.skill = self.random.random()
        self.noise = self.random.choice([1, 1, 1, 9])
        self.seed = seed

    def spend(self, ticks: int) -> None:
        """Let time pass, now and then more of it than usual."""
        self.seconds += TICK * ticks * (self.noise if self.random.random() < 0.1 else 1)

    def next(self, ids: Sequence[int]) -> int:
        """The token after these."""
        return random.Random(repr((self.seed, ids[-self.span :]))).randrange(VOCABULARY)


class MadeUpTarget:
    """A target whose likeliest tokens the world says."""

    context, vocab_size, max_rows = CONTEXT, VOCABULARY, MAX_ROWS
    whole = False

    def __init__(self, world: World, sound: bool = True) -> None:
        self.world, self.sound = world, sound
        self.ids: list[int] = []
        self.length = 0
        self.team = SimpleNamespace(library=cpu_library.load(), pool=1)

    def likeliest(self, ids: Sequence[int]) -> list[int]:
        """After each of these, which follow what is cached; time passes."""
        self.world.spend(self.world.verify_ticks[len(ids)])
        self.ids = self.ids[: self.length] + list(ids)
        return [self.world.next(self.ids[: self.length + row + 1]) for row in range(len(ids))]

    def extend(self, ids: Sequence[int]) -> Taps:
        self.ids = self.ids[: self.length] + list(ids)
        self.length += len(ids)
        return self.tapped(len(ids))

    def verify(self, anchor: int, draft: Draft) -> Verification:
        best = self.likeliest([anchor, *draft.tokens])
        logits = np.zeros((len(best), VOCABULARY), np.float32)
        logits[np.arange(len(best)), best] = 1.0
        return Verification(logits, self.tapped(len(best)))

    def tapped(self, rows: int) -> Taps:
        return np.zeros((rows, 1), np.float32)

    def keep(self, rows: int) -> None:
        self.length += rows

    def crop(self, length: int) -> None:
        self.length = length

    def end_prompt(self) -> None:
        pass

    def for_steps(self) -> EngineTargetStruct:
        return EngineTargetStruct()


class MadeUpModel:
    """A drafter that is right as often as the world says, and about as sure."""

    name, is_model, autoregressive, waiting, longest = "dflash", True, False, 0, 7

    def __init__(self, target: MadeUpTarget, fails_at: int = -1) -> None:
        self.target, self.asked, self.fails_at = target, 0, fails_at
        self.length = 0

    def observe(self, ids: Sequence[int], taps: Taps | None) -> None:
        assert taps is not None
        assert len(taps) == len(ids)
        self.length += len(ids)

    def rollback(self, length: int) -> None:
        self.length = length

    def propose(self, anchor: int, limit: int) -> Draft:
        world = self.target.world
        assert self.length == self.target.length
        self.asked += 1
        if self.asked == self.fails_at:
            raise LocaldflashError("the drafter failed")
        world.spend(world.draft_ticks)
        chance = random.Random(self.asked)
        ids, tokens, confidence = [*self.target.ids[: self.target.length], anchor], list[int](), list[float]()
        for _ in range(min(limit, self.longest)):
            right = chance.random() < world.skill
            ids.append(world.next(ids) if right else chance.randrange(VOCABULARY))
            tokens.append(ids[-1])
            confidence.append(float(np.float32(chance.random() ** (0.3 if right else 2.0))))
        return Draft(self.name, tokens, confidence)


def controller(world: World, model: bool) -> Controller:
    """Costs that were measured at load, some of them wrong."""
    widths = (1, 2, 4, 8, 16, 32)
    measured = {width: world.verify_ticks[width] * TICK * 1e3 * world.random.uniform(0.5, 2.0) for width in widths}
    growth = {width: measured[width] * world.random.uniform(0, 1e-3) for width in widths}
    costs = {"lookup": 0.0, **({"dflash": world.draft_ticks * TICK * 1e3} if model else {})}
    return Controller(measured, costs, growth)


def made(kind: type[HostPair], seed: int, model: bool = True, fails_at: int = -1) -> tuple[World, HostPair]:
    """A pair in a world of its own."""
    world = World(seed)
    if fails_at > 0:  # it is certainly asked
        world.verify_ticks, world.draft_ticks = [10] * (MAX_ROWS + 1), 0
    target: Any = MadeUpTarget(world)
    drafters: list[Any] = [LookupDrafter(), *([MadeUpModel(target, fails_at)] if model else [])]
    pair = kind(target, drafters, controller(world, model))
    if isinstance(pair, CpuPair):
        in_steps(pair, target, world)
    return world, pair


def in_steps(pair: CpuPair, target: MadeUpTarget, world: World) -> None:
    """Have C++ ask the made-up target and clock."""

    def verify(_: int, ids: Any, rows: int, length: int, best: Any) -> int:
        assert length == target.length
        for row, token in enumerate(target.likeliest(ids[:rows])):
            best[row] = token
        return 0 if target.sound else -2

    kept = Verify(verify), Now(lambda: world.seconds * 1e3)
    pair._calls.verify, pair._calls.now = (ctypes.cast(one, c_void_p) for one in kept)
    pair.kept = kept  # type: ignore[attr-defined]


def tell(step: Step) -> tuple[Any, ...]:
    return list(step.tokens), step.drafter, step.drafted, step.accepted, step.draft_ms, step.verify_ms


def estimates(pair: HostPair, model: bool) -> list[Any]:
    """Everything that decides what is drafted next."""
    known = pair.controller
    assert known
    names = ("lookup", "agreed", *(["dflash"] if model else []))
    sure = [Draft(name, [1] * 12, [c / 12 for c in range(12, 0, -1)]) for name in names]
    return [
        [known.verify_ms(rows) for rows in range(40)],
        [known.draft_ms.get(name, 0.0) for name in names],
        [known.promise(name, 12) for name in names],
        [known.best_prefix(draft) for draft in sure],
    ]


def lived(kind: type[HostPair], seed: int, model: bool) -> list[Any]:
    """All that can be seen of a pair's life: requests, steps of both kinds, documents, going back."""
    world, pair = made(kind, seed, model)
    plan, seen = random.Random(seed + 1), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.engine.host_pair.time.perf_counter", lambda: world.seconds)
        for _ in range(plan.randint(1, 4)):
            pair.ends = frozenset(plan.sample(range(VOCABULARY), plan.randint(0, 2)))
            pair.drafting = plan.random() < 0.9
            if plan.random() < 0.5:
                pair.set_documents([[plan.randrange(VOCABULARY) for _ in range(plan.randint(0, 30))] for _ in range(2)])
            if plan.random() < 0.4 and pair.ids:
                pair.rollback(plan.randint(1, len(pair.ids)))
            begin = pair.ids[: plan.randint(0, len(pair.ids))] if plan.random() < 0.6 else []
            pair.prefill([*begin, *(plan.randrange(VOCABULARY) for _ in range(plan.randint(1, 40)))][-200:])
            # probabilities to record: nothing else of a draw changes, but the step is one of Python
            sampler = Sampler(GREEDY, alternatives=0 if plan.random() < 0.2 else None)
            for _ in range(plan.randint(1, 120)):
                if not pair.room:
                    break
                seen.append(tell(pair.step(sampler, plan.choice([1, 2, 3, 100]))))
            seen += [list(pair.ids), estimates(pair, model)]
    return seen


@settings(max_examples=60)
@given(st.integers(0, 1 << 30), st.booleans())
def test_both_ways_are_the_same_to_the_last_bit(seed: int, model: bool) -> None:
    assert lived(CpuPair, seed, model) == lived(HostPair, seed, model)


def test_they_draft_from_everywhere() -> None:
    drafters = {step[1] for seed in range(12) for step in lived(CpuPair, seed, True) if isinstance(step, tuple)}
    assert drafters == {"lookup", "dflash", "none"}


def test_without_a_controller_it_decodes_plainly() -> None:
    target: Any = MadeUpTarget(World(3))
    pair = CpuPair(target)
    in_steps(pair, target, target.world)
    pair.prefill([1, 2, 3])
    steps = [pair.step(Sampler(GREEDY), 9) for _ in range(5)]
    assert [(len(step.tokens), step.drafter, step.drafted) for step in steps] == [(1, "none", 0)] * 5
    expected = [1, 2, 3]
    for _ in range(5):
        expected.append(target.world.next(expected))
    assert pair.ids == expected


def test_what_a_drafter_raises_comes_out_and_the_sequence_is_dropped() -> None:
    _, pair = made(CpuPair, 1, fails_at=1)
    pair.prefill([1, 2, 3])
    with pytest.raises(LocaldflashError, match="the drafter failed"):
        [pair.step(Sampler(GREEDY), 3) for _ in range(CONTEXT)]
    assert pair.ids == []
    pair.prefill([1, 2, 3])
    assert pair.step(Sampler(GREEDY), 3).tokens


def test_logits_that_are_no_numbers_are_an_error() -> None:
    _, pair = made(CpuPair, 5)
    pair.prefill([1, 2, 3])
    pair.target.sound = False  # type: ignore[attr-defined]
    with pytest.raises(LocaldflashError, match="not numbers: the file may be damaged"):
        pair.step(Sampler(GREEDY), 3)
    assert pair.ids == []


def test_a_controller_of_another_kind_keeps_to_python() -> None:
    world, pair = made(CpuPair, 7)
    given = controller(world, True)
    learned: list[int] = []
    pair.controller = type("Watched", (Controller,), {"learn_rest": lambda *_: learned.append(1)})(
        {1: 1.0, 2: 99.0}, dict(given.draft_ms)
    )
    pair.prefill([1, 2, 3])
    pair.drafting = False
    pair.step(Sampler(GREEDY), 3)
    assert learned == [1]


def test_an_anchor_that_is_no_token_is_refused(tiny_pair: Any) -> None:
    from localdflash.backends.cpu.cpu_target import CpuTarget
    from localdflash.backends.cpu.packed import open_target
    from localdflash.backends.cpu.team import Team

    team = Team(1)
    pair = CpuPair(CpuTarget(open_target(tiny_pair / "target.gguf"), team))
    for token in (-1, pair.target.vocab_size):
        pair.prefill([1, token])
        with pytest.raises(UsageError, match="a token is not one of the model's"):
            pair.step(Sampler(GREEDY), 3)
    team.close()
