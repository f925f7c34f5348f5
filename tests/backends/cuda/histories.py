"""Random histories of calls of a pair, checked against an oracle; see test_pair_deferred."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from localdflash.backends.cuda.cuda_pair import CudaPair, StepModes
from localdflash.backends.cuda.ops import REFERENCES, Ops
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import StepMode
from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER
from localdflash.kernels.cuda.sample import sample_reference
from tests.support.cuda_pairs import load_on_cpu
from tests.support.tiny_models import SHAPE, write_drafter, write_target

LENGTH, CHUNK, TAPS = 150, 16, 96  # of the context, of a chunk of attention, of the ring
STAGING_BYTES = 1 << 15  # bytes: some ten slots of a sequence that leaves
NEAR_TIE = 1e-3  # of logits
MODES: tuple[StepMode, ...] = ("plain", "lookup", "block", "draft")
SAMPLED = SamplingParams(temperature=0.8, seed=11)
BIASED = SamplingParams(logit_bias=((3, 1.5), (7, -100.0), (11, 1.0)))  # what the host has to choose


class RandomModes(StepModes):
    """Controller that chooses step modes at random."""

    def __init__(self, seed: int) -> None:
        super().__init__(dict.fromkeys(MODES, 1.0))
        self._random = random.Random(seed)
        self._mode: StepMode = "lookup"
        self._restless = self._random.choice([0.03, 0.4])

    def choose(self) -> StepMode:
        """Return mostly the same mode as before."""
        if self._random.random() < self._restless:
            self._mode = self._random.choice(MODES)
        return self._mode


@dataclass
class World:
    """Two pairs with separate memory, and the oracle of their model."""

    pair: CudaPair
    other: CudaPair
    model: Decoder

    @torch.inference_mode()
    def right(self, ids: list[int], first: int, params: SamplingParams) -> list[int]:
        """Return the expected tokens after ids[: first], ids[: first + 1], ... up to all but the last.

        A greedy token that nearly ties with the oracle's is expected, too: the pair's KV cache is rounded.
        """
        text = torch.tensor([ids[:-1]])
        hidden, _ = self.model(text, torch.arange(len(ids) - 1), causal)
        logits = self.model.logits(hidden)[0, first - 1 :]
        for token, bias in params.logit_bias:
            logits[:, token] += bias
        if not params.temperature:
            taken = torch.tensor(ids[first:])
            is_tie = logits.amax(-1) - logits.gather(-1, taken[:, None])[:, 0] < NEAR_TIE
            return [int(token) for token in torch.where(is_tie, taken, logits.argmax(-1))]
        chosen = torch.zeros(len(logits), dtype=torch.int32)
        integers = torch.tensor([0, params.seed or 0, 0, 0], dtype=torch.int32)
        floats, start = torch.tensor([params.temperature, 1.0, 0.0, 1.0]), torch.tensor([first - 1])
        sample_reference(logits.clone(), floats, integers, chosen, chosen, start, chosen)
        return [int(token) for token in chosen]


@contextmanager
def tiny_world(
    folder: Path, ops: Ops = REFERENCES, launch: Callable[[Callable[[], object]], object] | None = None
) -> Iterator[World]:
    """Yield two tiny pairs with small limits. `launch` runs the assertions about the start of a step."""
    target, drafter = write_target(folder / "target.gguf", SHAPE), write_drafter(folder, SHAPE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localdflash.kernels.cuda.attention.CHUNK", CHUNK)
        patch.setattr("localdflash.backends.cuda.runner.BUCKETS", (1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 16))
        patch.setattr("localdflash.backends.cuda.stepper.TAP_SLOTS", TAPS)
        patch.setattr("localdflash.backends.cuda.cuda_pair.TAP_SLOTS", TAPS)
        patch.setattr("localdflash.backends.cuda.offload.STAGING_BYTES", STAGING_BYTES)
        both = [load_on_cpu(target, drafter, ops, context=LENGTH) for _ in range(2)]
        for pair in both:
            _watch(pair, patch, launch or (lambda work: work()))
        yield World(both[0], both[1], load_decoder(target))
    torch.set_num_threads(threads)


def _watch(pair: CudaPair, patch: pytest.MonkeyPatch, launch: Callable[[Callable[[], object]], object]) -> None:
    """Assert that attention is launched for all chunks of a step, and that the drafter has all features."""
    stepper, step = pair.stepper, pair.stepper.step

    def check(mode: StepMode, splits: int) -> None:
        context, drafter = int(stepper.state[CONTEXT]), int(stepper.state[DRAFTER])
        assert context + ROWS <= splits * CHUNK
        assert context + 2 * ROWS <= len(stepper.tokens)
        assert mode not in ("block", "draft") or context - drafter <= ROWS
        assert context + ROWS - drafter <= TAPS

    def checked(mode: StepMode, greedy: bool, splits: int) -> None:
        launch(lambda: check(mode, splits))
        step(mode, greedy, splits)

    patch.setattr(stepper, "step", checked)


class Broken(RuntimeError):
    """The injected error of a failing call."""


@dataclass
class History:
    """Sequence of actions on a pair, and the expected state."""

    world: World
    random: random.Random
    checked: int = 0  # ids whose tokens need no checking: the prompt's
    sampler: Sampler = field(default_factory=lambda: Sampler(SamplingParams()))
    saved: list[Any] = field(default_factory=list)

    @property
    def pair(self) -> CudaPair:
        return self.world.pair

    def prompt(self) -> list[int]:
        """Choose new text, a continuation, or text that diverges from the cached sequence."""
        r, ids = self.random, self.pair.ids
        kept = ids[: r.choice([0, len(ids), r.randrange(len(ids) + 1)])]
        new = [r.randrange(20) for _ in range(r.choice([1, 3, 16, 17, 40]))]
        return (kept + new)[: LENGTH - 1]

    def check(self) -> None:
        """Assert that every committed token is the expected one."""
        ids = self.pair.ids
        if len(ids) > self.checked > 0:
            assert ids[self.checked :] == self.world.right(ids, self.checked, self.sampler.params)
        self.checked = len(ids)

    def prefill(self) -> None:
        self.check()
        ids = self.prompt()
        self.pair.prefill(ids)
        assert self.pair.ids == ids
        self.checked = len(ids)

    def prefill_cancelled(self) -> None:
        self.check()
        calls = iter([False] * self.random.randrange(3))
        self.pair.prefill(self.prompt(), lambda _: next(calls, True))
        self.checked = len(self.pair.ids)

    def prefill_broken(self) -> None:
        self.check()
        self._break("extend", self.random.randrange(3), lambda: self.pair.prefill(self.prompt()))
        self.checked = len(self.pair.ids)
        self.random.choice([self.prefill, self.steps])()

    def steps(self) -> None:
        pair = self.pair
        if not pair.ids:
            self.prefill()
        for _ in range(self.random.choice([1, 2, 9])):
            limit = self.random.choice([1, 2, 16, 1000])
            if pair.room == 0:
                return
            before = list(pair.ids)
            step = pair.step(self.sampler, limit)
            assert 1 <= len(step.tokens) <= limit
            assert pair.ids == before + list(step.tokens)
            assert not pair.ends.intersection(step.tokens[:-1])

    def step_broken(self) -> None:
        if self.pair.ids and self.pair.room:
            name = self.random.choice(["step", "read_record"])
            self._break(name, self.random.randrange(2), lambda: self.pair.step(self.sampler, 16))
            self.check()
            self.random.choice([self.prefill, self.regenerate, self.steps])()

    def request(self) -> None:
        """Start another request with random sampling parameters."""
        self.check()
        self.sampler = Sampler(self.random.choice([SAMPLED, SamplingParams(), BIASED]))
        self.pair.ends = frozenset(self.random.sample(range(160), self.random.choice([0, 0, 60])))
        self.pair.drafting_enabled = self.random.random() < 0.8

    def regenerate(self) -> None:
        self.check()
        if self.pair.ids:
            self.pair.prefill(self.pair.ids[: self.random.randrange(min(len(self.pair.ids), LENGTH - 1)) + 1])
            self.checked = len(self.pair.ids)

    def save(self) -> None:
        self.check()
        self.saved.append(self.pair.save())

    def load(self) -> None:
        if self.saved:
            self.check()
            state = self.random.choice(self.saved)
            self.pair.load(state)
            ids = [*state.ids, *[self.random.randrange(20) for _ in range(self.random.choice([1, 5]))]][: LENGTH - 1]
            self.pair.prefill(ids)
            self.checked = len(ids)

    def elsewhere(self) -> None:
        """Let the other pair, over the same memory, work in between."""
        self.check()
        plain = self.pair.with_mode(self.random.choice(MODES))
        plain.forget()
        plain.prefill([self.random.randrange(20) for _ in range(20)])
        plain.step(Sampler(SAMPLED), 16)
        self.pair.forget()
        self.checked = 0

    def documents(self) -> None:
        """Set documents, one with the expected continuation, so that lookup drafts are long and accepted."""
        text = list(self.pair.ids) or [1]
        for _ in range(30):
            text += self.world.right([*text, 0], len(text), SamplingParams())
        self.pair.set_documents([[self.random.randrange(20) for _ in range(9)], text])

    def _break(self, name: str, after: int, call: Callable[[], object]) -> None:
        """Make one call of the runner fail, before or after its work."""
        original, calls, late = getattr(self.pair.runner, name), [after], self.random.random() < 0.5

        def broken(*args: Any) -> Any:
            calls[0] -= 1
            if calls[0] == -1:
                if late:
                    original(*args)
                raise Broken
            return original(*args)

        setattr(self.pair.runner, name, broken)
        try:
            call()
        except Broken:
            pass
        finally:
            setattr(self.pair.runner, name, original)

    def end(self) -> None:
        """Assert that KV cache and drafter features equal those of a fresh prefill of the same text."""
        self.check()
        if not 2 <= len(self.pair.ids) < LENGTH:
            return
        other = self.world.other
        other.forget()
        other.prefill(self.pair.ids)
        ours, fresh = self.pair.save(), other.save()
        ours.wait()
        fresh.wait()
        assert ours.ids == fresh.ids
        np.testing.assert_allclose(_floats(ours.target), _floats(fresh.target), atol=1e-3)
        np.testing.assert_allclose(_floats(ours.drafters[0]), _floats(fresh.drafters[0]), atol=1e-3)


def _floats(state: bytes | bytearray) -> Any:
    return np.frombuffer(state, np.float32)


ACTS = (
    *[History.steps] * 3,
    *(History.documents, History.prefill, History.request, History.regenerate),
    *(History.save, History.load, History.elsewhere, History.prefill_cancelled),
)
FAILING = (*ACTS, History.prefill_broken, History.step_broken)


def play(world: World, acts: list[Callable[[History], None]], seed: int) -> None:
    world.pair.forget()
    world.pair.modes, world.pair.ends = RandomModes(seed), frozenset()
    history = History(world, random.Random(seed))
    for act in acts:
        act(history)
    history.end()


any_history = given(st.lists(st.sampled_from(FAILING), min_size=4, max_size=14), st.integers(0, 2**32))
fuzz = settings(  # without shrinking, which takes minutes: an example is short as it is
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
