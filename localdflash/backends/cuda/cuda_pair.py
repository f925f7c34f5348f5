"""CudaPair: a `Pair` whose steps run on the device.

While the host reads the result of a step, the next step runs. Steps past the end of a request are discarded by
resetting the device to the host's `ids`. A request that needs logits on the host (grammar, log probabilities, bias,
presence penalty) runs one step at a time: the host replaces the device's tokens by its own before the next step.
"""

import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np
import torch

from localdflash.backends.cuda.offload import OffloadedSequence
from localdflash.backends.cuda.runner import Runner
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DOCUMENTS, DRAFTING, SLACK, TAP_SLOTS, StepMode, Stepper
from localdflash.base.errors import ContextOverflow, DeviceError, LocaldflashError, UsageError
from localdflash.engine.accept import accept
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.draft import Draft
from localdflash.engine.lookup import BREAK
from localdflash.engine.pair import Interrupt, SavedSequence, StateLost, Step, never_interrupted
from localdflash.engine.sampling import NOT_NUMBERS, Sampler
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, STEP
from localdflash.kernels.cuda.split_k import MAX_TILES

TOKENS_DECAY = 0.9  # weight of the running mean of tokens per step against a new step
MS_DECAY = 0.98  # weight of the running mean of milliseconds, which hardly changes
INITIAL_TOKENS = 4.0  # tokens per step assumed for an untried mode
PROBE_SHARE = 0.02  # share of the time that may go into measuring modes that look slower


@dataclass
class ModeRecord:
    """Running means of one mode."""

    ms: float
    tokens: float = INITIAL_TOKENS

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.ms


class StepModes:
    """Chooses among the step modes of a pair; `step_ms` are the times measured at load."""

    def __init__(self, step_ms: dict[StepMode, float]) -> None:
        self.records = {mode: ModeRecord(ms) for mode, ms in step_ms.items()}
        self._saved = 0.0  # milliseconds that may be lost in modes that look slower

    def choose(self) -> StepMode:
        """Return the mode with the most expected tokens per millisecond, or sometimes a slower mode, to measure it."""
        best = max(self.records, key=lambda mode: self.records[mode].rate)
        for mode, record in self.records.items():
            loss = record.ms - record.tokens / self.records[best].rate  # milliseconds lost against the best mode
            if mode != best and loss <= self._saved:
                self._saved -= loss
                return mode
        return best

    def record_step(self, mode: StepMode, tokens: int, ms: float) -> None:
        """Update the means with a step that committed `tokens` tokens in `ms` milliseconds."""
        record = self.records[mode]
        record.tokens += (1 - TOKENS_DECAY) * (tokens - record.tokens)
        record.ms += (1 - MS_DECAY) * (min(ms, 3 * record.ms) - record.ms)
        self._saved = min(self._saved + PROBE_SHARE * ms, 10 * record.ms)


INT32_MAX = 2**31 - 1
DRAFTERS = ("none", "lookup", "dflash")  # names by the number in a step's record
SYNC_TOKENS = 8 * ROWS  # prompt tokens after which the host waits for the device, and so notices a cancellation
MAX_STEPS_IN_FLIGHT = 2  # including the step that the host waits for
UNMODIFIED_LOGITS = (0.0, 1.0, 0.0, 1.0), (0, 0, 0, 0)  # sampling parameters that leave the logits unmodified


@dataclass(frozen=True, slots=True)
class _StepInFlight:
    mode: StepMode
    number: int
    arrival: torch.cuda.Event | None


class CudaPair:
    """See `Pair`."""

    def __init__(self, stepper: Stepper, runner: Runner, modes: StepModes) -> None:
        self.stepper, self.runner, self.modes = stepper, runner, modes
        self.ends: frozenset[int] = frozenset()
        self.drafting_enabled = True
        self.ids: list[int] = []
        self._drafter_length = 0  # tokens in the drafter's cache
        self._computed = 0  # tokens in the target's cache, as far as the host knows
        self._in_blocks = 0  # leading tokens of `ids` prefilled in blocks, not in tiles of 16
        self._steps = 0  # steps started since the device's counter was last set to zero
        self._in_flight: deque[_StepInFlight] = deque()
        self._chosen_mode: StepMode | None = None  # chosen, but not started yet
        self._is_device_ahead = False  # whether the device may be ahead of `ids`
        self._sampler: Sampler | None = None
        self._greedy = True
        self._last_arrival = 0.0
        self._documents: Sequence[Sequence[int]] = ()

    def with_mode(self, mode: StepMode) -> "CudaPair":
        """Return a pair over the same device memory that uses one mode; `forget` before using the other pair again."""
        return CudaPair(self.stepper, self.runner, StepModes({mode: 1.0}))

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`; if the documents are too long, only their last tokens are used."""
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
        drafter = self.stepper.drafter
        return [self.stepper.cache, *([drafter.cache] if drafter else [])]

    def _layers(self) -> list[list[torch.Tensor]]:
        """Return the contiguous layers of the caches' tensors, each [slots, ...]."""
        return [[layer for tensor in cache.tensors() for layer in tensor] for cache in self._caches]

    @property
    def room(self) -> int:
        """See `Pair`."""
        return self.stepper.context - len(self.ids)

    def prefill(self, ids: Sequence[int], interrupt: Interrupt = never_interrupted) -> int:
        """See `Pair`."""
        if not ids:
            raise UsageError("the prompt is empty: at least one token is needed")
        if len(ids) >= self.stepper.context:
            raise ContextOverflow(f"the prompt has {len(ids)} tokens, the context holds {self.stepper.context}")
        blocks = self._split_blocks(len(ids) - 1)
        reused = self._count_reusable(count_common_prefix(self.cached, ids[:-1]), blocks)
        left = deque(size for size, end in zip(blocks, accumulate(blocks), strict=True) if end > reused)
        self.reset_device(reused)
        self.stepper.tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        try:
            while self._computed < len(ids) - 1 and not interrupt(self._computed):
                if left:
                    self._prefill_block(left.popleft())
                else:
                    self._extend(min(MAX_TILES * ROWS, len(ids) - 1 - self._computed))
                if (self._computed - reused) % SYNC_TOKENS == 0:
                    self.runner.synchronize()  # else `interrupt` would be called long before the tokens are computed
        finally:
            self.ids = list(ids[: self._computed + 1])
        return self._computed - reused

    def _count_reusable(self, common: int, blocks: Sequence[int]) -> int:
        """Return how many of the first `common` cached tokens are bit-identical to a prefill in these blocks."""
        if self._in_blocks == sum(blocks) <= common:
            return common
        reusable = 0
        for size, cached in zip(blocks, self._split_blocks(self._in_blocks), strict=False):
            if size != cached or reusable + size > common:
                break
            reusable += size
        return reusable

    def _split_blocks(self, tokens: int) -> list[int]:
        """Return the sizes of the blocks that begin a prompt; see `PromptReader.split`."""
        return self.stepper.reader.split(tokens) if self.stepper.reader else []

    def _prefill_block(self, size: int) -> None:
        self.runner.prefill_block(self._computed, size)
        self._advance(size)
        self._in_blocks = self._computed

    def _extend(self, count: int) -> None:
        self.runner.extend(-(-count // ROWS), self._computed)
        self._advance(count)

    def _advance(self, count: int) -> None:
        """Move CONTEXT past `count` computed tokens, and let the drafter read as many."""
        self._computed += count
        self.stepper.state[CONTEXT] = self._computed
        for _ in range(-(-count // ROWS) if self.stepper.drafter else 0):
            self._catch_up()

    def _catch_up(self) -> None:
        self.runner.catch_up(self._computed)
        self._drafter_length = min(self._drafter_length + ROWS, self._computed)

    def step(self, sampler: Sampler, limit: int) -> Step:
        """See `Pair`. If the logits are not numbers, forget the sequence and raise LocaldflashError."""
        room = min(limit, self.room)
        if room < 1:
            raise ContextOverflow(f"the context of {self.stepper.context} tokens is full")
        if self._is_device_ahead or sampler is not self._sampler:
            self.reset_device(len(self.ids) - 1)
            self._set_sampler(sampler)
        if not self._in_flight:
            self._last_arrival = time.perf_counter()
        self._is_device_ahead = True  # until this step has finished
        max_in_flight = 1 if sampler.needs_logits else MAX_STEPS_IN_FLIGHT
        while len(self._in_flight) < max_in_flight and self._start_step():
            pass
        return self._finish_step(self._in_flight.popleft(), sampler, room)

    def _set_sampler(self, sampler: Sampler) -> None:
        """Copy a request's sampling parameters to the device; a request without a seed gets a random one."""
        p, self._sampler = sampler.params, sampler
        self._greedy = p.temperature == 0.0 and not sampler.window and not sampler.needs_logits
        if self._greedy:
            return
        if sampler.needs_logits:
            self.stepper.set_sampling(*UNMODIFIED_LOGITS)
            return
        seed = secrets.randbits(62) if p.seed is None else p.seed
        low, high = (np.array(part, np.uint32).astype(np.int32).item() for part in (seed & 0xFFFFFFFF, seed >> 32))
        floats = (p.temperature, p.top_p, p.min_p, p.repetition_penalty)
        self.stepper.set_sampling(floats, (min(p.top_k, INT32_MAX), low, high, min(sampler.window, INT32_MAX)))

    def _start_step(self) -> bool:
        """Start one more step; return False if the drafter must first read tokens of steps in flight."""
        mode: StepMode = "plain"
        if self.drafting_enabled:
            mode = self._chosen_mode = self._chosen_mode or self.modes.choose()
        if self.stepper.drafter and not self._is_drafter_near(mode):
            if self._in_flight:
                return False
            while self._computed - self._drafter_length > ROWS:
                self._catch_up()
        max_length = self._computed + ROWS * len(self._in_flight)
        arrival = self.runner.step(mode, self._greedy, max_length)
        self._in_flight.append(_StepInFlight(mode, self._steps, arrival))
        self._chosen_mode = None
        self._steps += 1
        return True

    def _is_drafter_near(self, mode: StepMode) -> bool:
        """Return whether the drafter lags by 16 tokens at most, or in a mode without it, by less than its tap ring."""
        if mode not in DRAFTING:
            return self._computed - self._drafter_length < TAP_SLOTS - SLACK
        if any(started.mode not in DRAFTING for started in self._in_flight):
            return False
        return self._computed - self._drafter_length <= ROWS

    def _finish_step(self, started: _StepInFlight, sampler: Sampler, room: int) -> Step:
        """Wait for a step and commit its tokens, cut at the first end token and at `room`."""
        _, drafted, drafted_by, accepted, status, count, *ids = self.runner.read_record(started.arrival, started.number)
        now = time.perf_counter()
        ms, self._last_arrival = (now - self._last_arrival) * 1e3, now
        if status:
            self.forget()
            raise LocaldflashError(NOT_NUMBERS)
        if started.mode in DRAFTING:
            self._drafter_length = min(self._drafter_length + ROWS, self._computed)
        if sampler.needs_logits:
            tokens = self._accept(drafted, sampler, room)
            accepted, count = len(tokens) - 1, len(tokens)
        else:
            tokens = ids[: min(count, room)]
            tokens = tokens[: next((i + 1 for i, token in enumerate(tokens) if token in self.ends), len(tokens))]
            self._is_device_ahead = len(tokens) < count
        if self.drafting_enabled:
            self.modes.record_step(started.mode, count, ms)
        self.ids += tokens
        self._computed += len(tokens)
        return Step(tokens, DRAFTERS[drafted_by], drafted, min(accepted, len(tokens)), 0.0, ms)

    def _accept(self, drafted: int, sampler: Sampler, room: int) -> list[int]:
        """Sample the newest step's tokens on the host, overwrite the device's choice with them, and return them."""
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

    def reset_device(self, length: int) -> None:
        """Wait for the steps in flight and discard them: the device's context becomes the first `length` ids."""
        self._is_device_ahead = True  # until the reset is complete
        self._in_flight.clear()
        self.runner.synchronize()
        self._computed = length
        self._drafter_length = min(self._drafter_length, length)
        self._in_blocks = min(self._in_blocks, length)  # `length` is not within a block
        self._steps = 0
        fields = {CONTEXT: length, DRAFTER: self._drafter_length, STEP: 0}
        with self.runner.on_gpu():
            self.stepper.state.copy_(torch.tensor([fields.get(i, 0) for i in range(len(self.stepper.state))]))
        self._is_device_ahead = False

    def forget(self) -> None:
        """Drop the whole sequence, and the sampling parameters on the device."""
        self.ids, self._sampler = [], None
        self.reset_device(0)

    def close(self) -> None:
        """Free all device memory; the pair cannot be used afterwards."""
        self.runner.close()
        self._in_flight.clear()
        del self.runner, self.stepper

    def save(self) -> SavedSequence:
        """See `Pair`. The sequence is copied from the device while other steps run."""
        self.reset_device(self._computed)
        while self.stepper.drafter and self._drafter_length < self._computed:
            self._catch_up()
        sequence = self.runner.offload(self._layers(), self._computed)
        target, *drafters = sequence.saved
        return SavedSequence(
            tuple(self.cached),
            target,
            tuple(drafters),
            tokens_in_blocks=self._in_blocks,
            wait=partial(_wait_saved, sequence, self.runner),
        )

    def load(self, state: SavedSequence) -> None:
        """See `Pair`; the next call must be `prefill` with ids that continue the state's."""
        state.wait()
        self.forget()
        length = len(state.ids)
        self.stepper.tokens[:length] = torch.tensor(state.ids, dtype=torch.int32)
        groups = self._layers()
        self.runner.restore(groups, (state.target, *state.drafters), length)
        if self.stepper.drafter:
            self._drafter_length = length
        self.ids, self._in_blocks = list(state.ids), state.tokens_in_blocks
        self.reset_device(length)


def _wait_saved(sequence: OffloadedSequence, runner: Runner) -> None:
    """Wait until a sequence is copied; StateLost if that fails, DeviceError if the GPU is lost."""
    try:
        with runner.on_gpu():
            sequence.wait()
    except DeviceError:
        raise
    except Exception as error:
        raise StateLost(str(error).partition("\n")[0] or type(error).__name__) from error
