"""Checks of a loaded pair, from single operations to whole texts; a failure raises `CheckError`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_pair import CudaPair
from localdflash.backends.cuda.ops import REFERENCES, low_memory
from localdflash.backends.cuda.proof.operations import (
    CheckError,
    RowRecorder,
    Watch,
    compare_with_references,
    same_bits,
    using_ops,
    wrap_ops,
)
from localdflash.backends.cuda.runner import chunks
from localdflash.backends.cuda.stack import ROWS
from localdflash.backends.cuda.stepper import DRAFTING, StepMode, Stepper
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.kernels.cuda.attention import BUCKETS, slots_of
from localdflash.kernels.cuda.rounds import CONTEXT, DRAFTER, LIVE

TEXT_TOKENS = 64  # length of a greedy answer
SAMPLED_TOKENS = 16  # length of a sampled answer
REPLAYED_STEPS = 6
CACHE_TENSORS = "keys", "values", "scales of keys", "scales of values"  # the scales only of an 8-bit cache
CHECKED_ROWS = (1, 6, 15)  # rows of a verify batch that are compared with a single-token batch
MAX_REGRET_NATS = 0.2  # log probability, by the reference, that the kernels' choice may lose to the reference's choice
SAMPLING_FLOATS = (0.8, 0.95, 0.05, 1.1)  # temperature, top_p, min_p, repetition penalty
SAMPLING_INTEGERS = (40, 12345, -678, 64)  # top_k, seed (low, high), penalty window
SAMPLED_ON_DEVICE = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=7)
SAMPLED_ON_HOST = SamplingParams(temperature=0.8, top_k=40, presence_penalty=0.5, seed=7)  # penalty: needs the host

Check = Callable[[], None]


def stages(pair: CudaPair, ids: Sequence[int], watch: Watch) -> Iterator[tuple[str, Check]]:
    """Yield the checks by name; `ids` are a prompt of at least 17 tokens that leaves room for an answer."""
    checks = _SelfCheck(pair, list(ids), watch)
    yield "operations", checks.check_operations
    yield "short prompt", checks.check_short_prompt
    yield "rows", checks.check_rows
    yield "prompts", checks.check_prompts
    if pair.stepper.reader:
        yield "blocks", checks.check_blocks
    yield "texts", checks.check_texts
    yield "sampled texts", checks.check_sampled_texts
    yield "graphs", checks.check_graphs
    if checks.bucket_borders:
        yield "long context", checks.check_long_context


@dataclass(frozen=True)
class _SelfCheck:
    pair: CudaPair
    ids: list[int]
    watch: Watch

    @property
    def stepper(self) -> Stepper:
        """The pair's stepper."""
        return self.pair.stepper

    def check_operations(self) -> None:
        """Compare every operation with its reference: in a prompt, in steps without a draft, sampled and drafted."""
        stepper = self.stepper
        self.pair.forget()
        stepper.set_sampling(SAMPLING_FLOATS, SAMPLING_INTEGERS)
        stepper.tokens[: len(self.ids)] = torch.tensor(self.ids, dtype=torch.int32)
        with using_ops(stepper, compare_with_references(stepper, self.watch)):
            stepper.extend(tiles=2, splits=self._splits)
            for length in range(0, len(self.ids) - 1, ROWS):
                stepper.state[CONTEXT] = length  # `extend` starts here and does not advance it
                stepper.extend(tiles=1, splits=self._splits)
                stepper.state[CONTEXT] = min(length + ROWS, len(self.ids) - 1)  # as far as `catch_up` may read
                if stepper.drafter:
                    stepper.catch_up()
            start = stepper.state.clone()
            for mode in dict.fromkeys([*self._modes[:2], self._modes[-1]]):
                stepper.state.copy_(start)
                stepper.step(mode, greedy=mode != "lookup", splits=self._splits)
        self.pair.forget()

    def check_short_prompt(self) -> None:
        """Compare the likeliest tokens after each of the first 16 tokens, by the kernels and by the references."""
        with self._prefilled():
            ours = self._logits(0)
            with using_ops(self.stepper, wrap_ops(REFERENCES, lambda _name, reference: low_memory(reference))):
                theirs = self._logits(0)
        _require_same_choice("the short prompt", ours, theirs)

    def check_blocks(self) -> None:
        """Compare the likeliest tokens after a prompt read in blocks of every size, and after the prompt in tiles."""
        stepper, reader = self.stepper, self.stepper.reader
        assert reader
        total = sum(reader.sizes)
        ids = (self.ids * (total // len(self.ids) + 2))[: total + ROWS]
        self.pair.forget()
        stepper.tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        for size, end in zip(reader.sizes, accumulate(reader.sizes), strict=True):
            stepper.state[CONTEXT] = end - size
            stepper.prefill_block(size)
        in_blocks = self._logits(total)
        for length in range(0, total, 2 * ROWS):
            stepper.state[CONTEXT] = length
            stepper.extend(tiles=2, splits=chunks(total, stepper.cache.k.shape[1]))
        _require_same_choice("a block of the prompt", in_blocks, self._logits(total))
        self.pair.forget()

    def _logits(self, context: int) -> Tensor:
        """Return the logits, float32 [16, V], after each of the 16 tokens that follow `context` tokens."""
        stepper, vocabulary = self.stepper, self.stepper.target.config.vocab_size
        stepper.state[CONTEXT] = context
        stepper.extend(tiles=1, splits=chunks(context, stepper.cache.k.shape[1]))
        logits = torch.zeros(ROWS, vocabulary, device=stepper.device)
        stepper.stack.lm_head(stepper.target.head, stepper.choice, logits)
        return logits

    def check_rows(self) -> None:
        """Check that a verify batch is bit-identical to autoregressive decoding, in any row, with any draft."""
        first = len(self.ids) - ROWS - 1
        self.stepper.set_sampling(SAMPLING_FLOATS, SAMPLING_INTEGERS)  # so that the head stores its logits
        for row in CHECKED_ROWS:
            together = RowRecorder(self.stepper, row, first + row)
            alone = RowRecorder(self.stepper, 0, first + row)
            with self._prefilled():
                self._verify(together, first, self.ids[first : first + ROWS])
                self._verify(alone, first + row, [self.ids[first + row]])
            together.check(alone)

    def _verify(self, recorder: RowRecorder, context: int, draft: list[int]) -> None:
        stepper = self.stepper
        stepper.state[CONTEXT], stepper.state[LIVE] = context, len(draft)
        stepper.draft.copy_(torch.tensor([*draft, *[0] * (ROWS - len(draft))]))
        with using_ops(stepper, recorder.record(stepper.ops)):
            stepper.verify(greedy=False, splits=self._splits)

    def check_prompts(self) -> None:
        """Check that two tiles of a prompt at once are bit-identical to one tile at a time, in every layer."""
        together, alone = self._read_prompt(2), self._read_prompt(1)
        for name, tensor in together.items():
            if not same_bits(tensor, alone[name]):
                raise CheckError("a prompt in two tiles", f"{name} differ from those of one tile at a time")

    def _read_prompt(self, tiles: int) -> dict[str, Tensor]:
        stepper, rows = self.stepper, 2 * ROWS
        self.pair.forget()
        stepper.tokens[: len(self.ids)] = torch.tensor(self.ids, dtype=torch.int32)
        for length in range(0, rows, tiles * ROWS):
            stepper.state[CONTEXT] = length
            stepper.extend(tiles=tiles, splits=self._splits)
        outputs: dict[str, Tensor] = {}
        for index in range(len(stepper.target.layers)):
            cache = stepper.cache.layer(index)
            for name, tensor in zip(CACHE_TENSORS, cache.tensors(), strict=False):
                outputs[f"the {name} of layer {index}"] = tensor[:rows].clone()
        if stepper.drafter:
            outputs["the drafter's taps"] = stepper.drafter.ring.ring[:rows].clone()
        self.pair.forget()
        return outputs

    def check_texts(self) -> None:
        """Check that an answer is the same in a second run, and with drafts of every kind, some long and correct."""
        plain = self._generate("plain", TEXT_TOKENS)
        _require_same("plain", "a second run writes another text", self._generate("plain", TEXT_TOKENS), plain)
        # A lookup of the prompt's end drafts half of the answer, then wrong tokens.
        self.pair.set_documents([[*self.ids[-4:], *plain[: TEXT_TOKENS // 2], *plain[:4]]])
        for mode in self._modes[1:]:
            _require_same(mode, "drafts change the text", self._generate(mode, TEXT_TOKENS), plain)
        self.pair.set_documents([])

    def check_sampled_texts(self) -> None:
        """Check that drafts do not change sampled texts, on the device and on the host."""
        for params in (SAMPLED_ON_DEVICE, SAMPLED_ON_HOST):
            plain = self._generate("plain", SAMPLED_TOKENS, params)
            for mode in self._modes:
                text = self._generate(mode, SAMPLED_TOKENS, params)
                _require_same(f"{mode}, sampled", "drafts change the text", text, plain)

    def _generate(self, mode: StepMode, count: int, params: SamplingParams | None = None) -> list[int]:
        pair = self.pair.with_mode(mode)
        pair.forget()
        request = Request(self.ids, count, params or SamplingParams())
        return [token for step in generate(pair, request) for token in step.tokens]

    def check_graphs(self) -> None:
        """Check that replayed graphs write the same bits as the launches they were captured from."""
        for mode in self._modes:
            with self._prefilled():
                self._replay(mode, len(self.ids) - 1)

    def _replay(self, mode: StepMode, length: int) -> None:
        """Compare steps replayed as graphs with launched steps, which all cover the chunks that the last step needs."""
        stepper, runner, start = self.stepper, self.pair.runner, self.stepper.state.clone()
        splits = chunks(length + ROWS * REPLAYED_STEPS, stepper.cache.k.shape[1])

        def replay(step: int) -> None:
            runner.step(mode, greedy=True, length=length + ROWS * step)
            runner.synchronize()

        replayed = list(self._steps(replay))
        stepper.state.copy_(start)
        launched = list(self._steps(lambda _: stepper.step(mode, greedy=True, splits=splits)))
        for step, (got, want) in enumerate(zip(replayed, launched, strict=True), 1):
            for name, tensor in got.items():
                if not same_bits(tensor, want[name]):
                    raise CheckError(f"the graph of {mode}", f"step {step} has another {name} than its launches")

    def _steps(self, run: Callable[[int], None]) -> Iterator[dict[str, Tensor]]:
        stepper = self.stepper
        for step in range(REPLAYED_STEPS):
            run(step)
            outputs = {"state": stepper.state, "draft": stepper.draft, "choice": stepper.choice}
            outputs["hidden"] = stepper.stack.buffers.hidden
            yield {name: tensor.clone() for name, tensor in outputs.items()}

    @property
    def bucket_borders(self) -> list[int]:
        """Context lengths at which different graphs and attention kernels begin."""
        room = self.stepper.context - 4 * ROWS
        return [slots_of(bucket) for bucket in BUCKETS[:-1] if slots_of(bucket) <= room]

    def check_long_context(self) -> None:
        """For each of `bucket_borders`, check operations in a context past it, then graphs across it."""
        with self._prefilled():
            for border in self.bucket_borders:
                self._stretch(border + ROWS)
                splits = chunks(border + 2 * ROWS, self.stepper.cache.k.shape[1])
                with using_ops(self.stepper, compare_with_references(self.stepper, self.watch)):
                    self.stepper.step(self._modes[-1], greedy=True, splits=splits)
                for mode in self._modes:
                    self._stretch(border - 2 * ROWS)
                    self._replay(mode, border - 2 * ROWS)

    def _stretch(self, length: int) -> None:
        """Fill a context of `length` tokens with repetitions of the prompt's keys, values and tokens."""
        stepper, kept = self.stepper, len(self.ids) - 1
        index = torch.arange(length, device=stepper.device) % kept
        for cache in (stepper.cache, *([stepper.drafter.cache] if stepper.drafter else [])):
            for tensor in cache.tensors():
                codes = tensor.view(torch.uint8)  # not every type can be indexed
                codes[:, :length] = codes[:, index]
        stepper.tokens[:length] = stepper.tokens[index]
        stepper.tokens[length] = self.ids[-1]
        stepper.state.zero_()
        stepper.state[CONTEXT], stepper.state[DRAFTER] = length, length

    @property
    def _modes(self) -> list[StepMode]:
        # "block", which launches the most operations, is last.
        return ["plain", "lookup", *(DRAFTING[::-1] if self.stepper.drafter else ())]

    @property
    def _splits(self) -> int:
        return chunks(len(self.ids) + TEXT_TOKENS, self.stepper.cache.k.shape[1])

    @contextmanager
    def _prefilled(self) -> Iterator[None]:
        """Prefill the prompt for the `with` block; drop the sequence afterwards."""
        self.pair.forget()
        self.pair.prefill(self.ids)
        self.pair.reset_device(len(self.ids) - 1)
        try:
            yield
        finally:
            self.pair.runner.synchronize()
            self.pair.forget()


def _require_same(operation: str, failure: str, got: list[int], want: list[int]) -> None:
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), len(want))
        raise CheckError(operation, f"{failure} from token {first + 1} on")


def _require_same_choice(operation: str, ours: Tensor, theirs: Tensor) -> None:
    """Raise CheckError if a row's likeliest token in `ours`, logits [16, V], is clearly less likely in `theirs`."""
    likely = theirs.log_softmax(-1)
    regret = (likely.amax(-1) - likely.gather(1, ours.argmax(-1, keepdim=True))[:, 0]).nan_to_num(float("inf"))
    if float(regret.max()) > MAX_REGRET_NATS:
        row, nats = int(regret.argmax()), float(regret.max())
        raise CheckError(operation, f"after token {row} the choice is {nats:.2f} nats less likely than the reference's")
