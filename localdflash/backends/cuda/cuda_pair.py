"""CudaPair: the `Pair` whose steps run on the device, read one step late.

While the host reads a step, the next one runs. Steps past the end of a request are discarded: the device is set back to
the host's `ids`. A request that needs logits on the host (grammar, log probabilities, bias, presence penalty) runs one
step at a time: the host replaces the device's choice by its own before the next step.
"""

import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from localdflash.backends.cuda.leaving import Leaving
from localdflash.backends.cuda.runner import Runner
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DOCUMENTS, DRAFTING, SLACK, TAP_SLOTS, Stepper, Way
from localdflash.base.errors import ContextOverflow, DeviceError, LocaldflashError, UsageError
from localdflash.engine.accept import accept
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.draft import Draft
from localdflash.engine.lookup import BREAK
from localdflash.engine.pair import Cancelled, SavedSequence, StateLost, Step, never_cancelled
from localdflash.engine.sampling import NOT_NUMBERS, Sampler
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, STEP
from localdflash.kernels.cuda.split_k import MOST_TILES

MEMORY = 0.9  # weight of what was seen before, for tokens a step
SLOW = 0.98  # the same for milliseconds, which hardly change
HOPE = 4.0  # tokens a step that a way is given credit for before it was tried
SHARE = 0.02  # of the time may go into trying the way that looks worse


@dataclass
class WayRecord:
    """The running means of one way."""

    ms: float
    tokens: float = HOPE

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


class Ways:
    """Chooses among the ways that a pair has; `step_ms` are the times measured at load."""

    def __init__(self, step_ms: dict[Way, float]) -> None:
        self.records = {way: WayRecord(ms) for way, ms in step_ms.items()}
        self._saved = 0.0  # milliseconds that may be spent on a try

    def choose(self) -> Way:
        """Return the way that promises most tokens per millisecond, or now and then the other one."""
        best = max(self.records, key=lambda way: self.records[way].rate)
        for way, record in self.records.items():
            loss = record.ms - record.tokens / self.records[best].rate  # time that the other way would not have taken
            if way != best and loss <= self._saved:
                self._saved -= loss
                return way
        return best

    def learn(self, way: Way, tokens: int, ms: float) -> None:
        """Count a step."""
        record = self.records[way]
        record.tokens += (1 - MEMORY) * (tokens - record.tokens)
        record.ms += (1 - SLOW) * (min(ms, 3 * record.ms) - record.ms)
        self._saved = min(self._saved + SHARE * ms, 10 * record.ms)


MOST = 2**31 - 1
DRAFTERS = ("none", "lookup", "dflash")  # by their number in a record
PATIENCE = 8 * ROWS  # prompt tokens that may be on their way
AHEAD = 2  # steps on their way at most, the one waited for among them
UNTOUCHED = (0.0, 1.0, 0.0, 1.0), (0, 0, 0, 0)  # parameters of sampling that leave the logits as the head made them


@dataclass(frozen=True, slots=True)
class _Flying:
    way: Way
    number: int
    arrival: torch.cuda.Event | None


class CudaPair:
    """See `Pair`."""

    def __init__(self, stepper: Stepper, runner: Runner, ways: Ways) -> None:
        self.stepper, self.runner, self.ways = stepper, runner, ways
        self.ends: frozenset[int] = frozenset()
        self.drafting_enabled = True
        self.ids: list[int] = []
        self._seen = 0  # tokens in the drafter's cache
        self._computed = 0  # tokens in the target's cache, as far as the host knows
        self._block = stepper.reader.block if stepper.reader else stepper.context  # tokens; no prompt has the latter
        self._read = 0  # the first of them, which were read in blocks and not in tiles
        self._steps = 0  # started since the device's counter was last set to zero
        self._flying: deque[_Flying] = deque()
        self._waiting: Way | None = None  # chosen, but not started yet
        self._ahead = False  # whether the device may be ahead of `ids`
        self._sampler: Sampler | None = None
        self._greedy = True
        self._arrived = 0.0
        self._documents: Sequence[Sequence[int]] = ()

    def only(self, way: Way) -> "CudaPair":
        """A pair over the same device memory that steps in one way alone; `forget` before using the other one again."""
        return CudaPair(self.stepper, self.runner, Ways({way: 1.0}))

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """Set the texts that lookup may copy from; the newest tokens of them if they are too long."""
        if documents == self._documents:
            return
        self._documents = documents
        joined = [token for document in documents for token in (*document, BREAK)][-DOCUMENTS:]
        self.stepper.documents[: len(joined)] = torch.tensor(joined, dtype=torch.int32)
        self.stepper.documents_length.fill_(len(joined))

    @property
    def cached(self) -> Sequence[int]:
        """See `Pair`."""
        return self.ids[: self._computed]

    @property
    def _caches(self) -> list[Cache]:
        block = self.stepper.block
        return [self.stepper.cache, *([block.cache] if block else [])]

    def _layers(self) -> list[list[torch.Tensor]]:
        """Return the contiguous layers of the caches' tensors, each [slots, ...]."""
        return [[layer for tensor in cache.tensors() for layer in tensor] for cache in self._caches]

    @property
    def room(self) -> int:
        """See `Pair`."""
        return self.stepper.context - len(self.ids)

    def prefill(self, ids: Sequence[int], cancelled: Cancelled = never_cancelled) -> int:
        """See `Pair`. ContextOverflow names both numbers; a cancelled prefill keeps what it has computed."""
        if not ids:
            raise UsageError("the prompt is empty: at least one token is needed")
        if len(ids) >= self.stepper.context:
            raise ContextOverflow(f"the prompt has {len(ids)} tokens, the context holds {self.stepper.context}")
        in_blocks = (len(ids) - 1) // self._block * self._block
        kept = self._reusable(count_common_prefix(self.cached, ids[:-1]), in_blocks)
        self._set_back(kept)
        self.stepper.tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        try:
            while self._computed < len(ids) - 1 and not cancelled():
                if self._computed < in_blocks:
                    self._read_block()
                else:
                    self._extend(min(MOST_TILES * ROWS, len(ids) - 1 - self._computed))
                if (self._computed - kept) % PATIENCE == 0:
                    self.runner.synchronize()  # else a cancellation would be read long before its time
        finally:  # what is computed is theirs
            self.ids = list(ids[: self._computed + 1])
        return self._computed - kept

    def _reusable(self, common: int, in_blocks: int) -> int:
        """Return how many of the `common` first tokens have the bits of a prompt with `in_blocks` tokens in blocks."""
        alike = common if self._read == in_blocks else min(common, self._read, in_blocks)
        return alike if alike >= in_blocks else alike // self._block * self._block

    def _read_block(self) -> None:
        """Compute the next block of the prompt; the drafter sees it at once."""
        self.runner.read(self._computed)
        self._advance(self._block)
        self._read = self._computed

    def _extend(self, count: int) -> None:
        """Compute `count` more tokens of the prompt in tiles; the drafter sees them at once."""
        self.runner.extend(-(-count // ROWS), self._computed)
        self._advance(count)

    def _advance(self, count: int) -> None:
        self._computed += count
        self.stepper.state[CONTEXT] = self._computed
        for _ in range(-(-count // ROWS) if self.stepper.block else 0):
            self._catch_up()

    def _catch_up(self) -> None:
        self.runner.catch_up(self._computed)
        self._seen = min(self._seen + ROWS, self._computed)

    def step(self, sampler: Sampler, limit: int) -> Step:
        """See `Pair`. LocaldflashError if the model gives no numbers; the sequence is then dropped."""
        room = min(limit, self.room)
        if room < 1:
            raise ContextOverflow(f"the context of {self.stepper.context} tokens is full")
        if self._ahead or sampler is not self._sampler:
            self._set_back(len(self.ids) - 1)
            self._use(sampler)
        if not self._flying:
            self._arrived = time.perf_counter()
        self._ahead = True  # until this step has landed
        ahead = 1 if sampler.needs_logits else AHEAD
        while len(self._flying) < ahead and self._launch():
            pass
        return self._land(self._flying.popleft(), sampler, room)

    def _use(self, sampler: Sampler) -> None:
        """Put a request's sampling parameters on the device; a request without a seed gets one of its own."""
        p, self._sampler = sampler.params, sampler
        self._greedy = p.temperature == 0.0 and not sampler.window and not sampler.needs_logits
        if self._greedy:
            return
        if sampler.needs_logits:
            self.stepper.set_sampling(*UNTOUCHED)
            return
        seed = secrets.randbits(62) if p.seed is None else p.seed
        low, high = (np.array(part, np.uint32).astype(np.int32).item() for part in (seed & 0xFFFFFFFF, seed >> 32))
        floats = (p.temperature, p.top_p, p.min_p, p.repetition_penalty)
        self.stepper.set_sampling(floats, (min(p.top_k, MOST), low, high, min(sampler.window, MOST)))

    def _launch(self) -> bool:
        """Start one more step; False if the drafter must first see tokens of steps that are still under way."""
        way: Way = "plain"
        if self.drafting_enabled:
            way = self._waiting = self._waiting or self.ways.choose()
        if self.stepper.block and not self._drafter_is_near(way):
            if self._flying:
                return False
            while self._computed - self._seen > ROWS:
                self._catch_up()
        most = self._computed + ROWS * len(self._flying)
        arrival = self.runner.step(way, self._greedy, most)
        self._flying.append(_Flying(way, self._steps, arrival))
        self._waiting = None
        self._steps += 1
        return True

    def _drafter_is_near(self, way: Way) -> bool:
        """Return whether the drafter's context is complete: at most one round behind, or all features kept."""
        if way not in DRAFTING:
            return self._computed - self._seen < TAP_SLOTS - SLACK
        if any(flying.way not in DRAFTING for flying in self._flying):
            return False
        return self._computed - self._seen <= ROWS

    def _land(self, flying: _Flying, sampler: Sampler, room: int) -> Step:
        """Take in what a step committed, cut at the first end token and at `room`."""
        _, drafted, drafted_by, accepted, status, count, *ids = self.runner.record(flying.arrival, flying.number)
        now = time.perf_counter()
        ms, self._arrived = (now - self._arrived) * 1e3, now
        if status:
            self.forget()
            raise LocaldflashError(NOT_NUMBERS)
        if flying.way in DRAFTING:
            self._seen = min(self._seen + ROWS, self._computed)
        if sampler.needs_logits:
            tokens = self._accept(drafted, sampler, room)
            accepted, count = len(tokens) - 1, len(tokens)
        else:
            tokens = ids[: min(count, room)]
            tokens = tokens[: next((i + 1 for i, token in enumerate(tokens) if token in self.ends), len(tokens))]
            self._ahead = len(tokens) < count
        if self.drafting_enabled:
            self.ways.learn(flying.way, count, ms)
        self.ids += tokens
        self._computed += len(tokens)
        return Step(tokens, DRAFTERS[drafted_by], drafted, min(accepted, len(tokens)), 0.0, ms)

    def _accept(self, drafted: int, sampler: Sampler, room: int) -> list[int]:
        """Return what the sampler commits of the step that has just arrived, in place of what the device did."""
        try:
            proposed, logits = self.runner.draft_and_logits(drafted)
            tokens = accept(Draft("", proposed, ()), logits, sampler, self.ids, room, self.ends)
        except BaseException:
            self.forget()
            raise
        first = len(self.ids)
        with self.runner.on_gpu():
            self.stepper.tokens[first : first + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        return tokens

    def _set_back(self, length: int) -> None:
        """Wait for the steps under way and discard them: the device's context becomes `length` tokens of `ids`."""
        self._ahead = True  # until all of this is done
        self._flying.clear()
        self.runner.synchronize()
        self._computed, self._seen, self._read = length, min(self._seen, length), min(self._read, length)
        self._steps = 0
        fields = {CONTEXT: length, DRAFTER: self._seen, STEP: 0}
        with self.runner.on_gpu():
            self.stepper.state.copy_(torch.tensor([fields.get(i, 0) for i in range(len(self.stepper.state))]))
        self._ahead = False

    def rollback(self, length: int) -> None:
        """See `Pair`; the last id that is kept becomes the anchor."""
        if not 1 <= length <= len(self.ids):
            raise UsageError(f"cannot roll back to {length} tokens of {len(self.ids)}")
        self.ids = self.ids[:length]
        self._set_back(length - 1)

    def forget(self) -> None:
        """Drop the whole sequence."""
        self.ids, self._sampler = [], None
        self._set_back(0)

    def close(self) -> None:
        """Let go of all device memory; nothing may be asked of the pair afterwards."""
        self.runner.close()
        self._flying.clear()
        del self.runner, self.stepper

    def save(self) -> SavedSequence:
        """See `Pair`. The sequence leaves the device while other steps run."""
        self._set_back(self._computed)
        while self.stepper.block and self._seen < self._computed:
            self._catch_up()
        leaving = self.runner.put_aside(self._layers(), self._computed)
        target, *drafters = leaving.saved
        return SavedSequence(
            tuple(self.cached),
            target,
            tuple(drafters),
            in_blocks=self._read,
            wait=partial(_arrived, leaving, self.runner),
        )

    def load(self, state: SavedSequence) -> None:
        """See `Pair`; the next call must be `prefill` with ids that go on from the state's."""
        state.wait()
        self.forget()
        length = len(state.ids)
        self.stepper.tokens[:length] = torch.tensor(state.ids, dtype=torch.int32)
        groups = self._layers()
        self.runner.bring_back(groups, (state.target, *state.drafters), length)
        if self.stepper.block:
            self._seen = length
        self.ids, self._read = list(state.ids), state.in_blocks
        self._set_back(length)


def _arrived(leaving: Leaving, runner: Runner) -> None:
    """Wait until a sequence has left; StateLost if it has not, and DeviceError if the GPU is lost with it."""
    try:
        with runner.on_gpu():
            leaving.arrived()
    except DeviceError:
        raise
    except Exception as error:
        raise StateLost(str(error).partition("\n")[0] or type(error).__name__) from error
