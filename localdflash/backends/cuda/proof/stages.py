"""Checks of a loaded pair with its weights, from single operations to whole texts; a failure raises `CheckError`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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

TEXT_TOKENS = 64
SAMPLED_TOKENS = 16
REPLAYED_STEPS = 6
CHECKED_ROWS = (1, 6, 15)  # rows of a verify batch that are compared with a single-token batch
MAX_REGRET_NATS = 0.2  # between the kernels' likeliest token and the reference's
SAMPLING = (0.8, 0.95, 0.05, 1.1), (40, 12345, -678, 64)  # in the order of the stepper's buffers
SAMPLED_ON_DEVICE = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, repetition_penalty=1.1, seed=7)
SAMPLED_ON_HOST = SamplingParams(temperature=0.8, top_k=40, presence_penalty=0.5, seed=7)  # sampled on the host

Check = Callable[[], None]


def stages(pair: CudaPair, ids: Sequence[int], watch: Watch) -> Iterator[tuple[str, Check]]:
    """Yield the checks by name; `ids` are a prompt of at least 17 tokens that leaves room for an answer."""
    proof = _Proof(pair, list(ids), watch)
    yield "operations", proof.operations
    yield "short prompt", proof.short_prompt
    yield "rows", proof.rows
    yield "prompts", proof.prompts
    if pair.stepper.reader:
        yield "blocks", proof.blocks
    yield "texts", proof.texts
    yield "sampled texts", proof.sampled_texts
    yield "graphs", proof.graphs
    if proof.bucket_borders:
        yield "long context", proof.long_context


@dataclass(frozen=True)
class _Proof:
    pair: CudaPair
    ids: list[int]
    watch: Watch

    @property
    def stepper(self) -> Stepper:
        """The pair's stepper."""
        return self.pair.stepper

    def operations(self) -> None:
        """Check every operation of both models: in a prompt, in a step, in sampled and drafted steps."""
        stepper = self.stepper
        self.pair.forget()
        stepper.set_sampling(*SAMPLING)
        stepper.tokens[: len(self.ids)] = torch.tensor(self.ids, dtype=torch.int32)
        with using_ops(stepper, compare_with_references(stepper, self.watch)):
            stepper.extend(2, self._splits)
            for length in range(0, len(self.ids) - 1, ROWS):
                stepper.state[CONTEXT] = length
                stepper.extend(1, self._splits)
                stepper.state[CONTEXT] = min(length + ROWS, len(self.ids) - 1)
                if stepper.block:
                    stepper.catch_up()
            start = stepper.state.clone()
            for mode in dict.fromkeys([*self._modes[:2], self._modes[-1]]):
                stepper.state.copy_(start)
                stepper.step(mode, mode != "lookup", self._splits)
        self.pair.forget()

    def short_prompt(self) -> None:
        """Compare the likeliest tokens after each of 16 tokens, by the kernels and by the references."""
        with self._prefilled():
            ours = self._logits(0)
            with using_ops(self.stepper, wrap_ops(REFERENCES, lambda _name, reference: low_memory(reference))):
                theirs = self._logits(0)
        _same_choice("the short prompt", ours, theirs)

    def blocks(self) -> None:
        """Compare the likeliest tokens after a block of the prompt, read at once and in tiles."""
        stepper, reader = self.stepper, self.stepper.reader
        assert reader
        ids = (self.ids * (reader.block // len(self.ids) + 2))[: reader.block + ROWS]
        self.pair.forget()
        stepper.tokens[: len(ids)] = torch.tensor(ids, dtype=torch.int32)
        reader.read(stepper.tokens[: reader.block], 0)
        at_once = self._logits(reader.block)
        for length in range(0, reader.block, 2 * ROWS):
            stepper.state[CONTEXT] = length
            stepper.extend(2, chunks(reader.block, stepper.cache.k.shape[1]))
        _same_choice("a prompt's block", at_once, self._logits(reader.block))
        self.pair.forget()

    def _logits(self, context: int) -> Tensor:
        """Return the logits, float32 [16, V], after each of the 16 tokens that follow a context."""
        stepper, vocabulary = self.stepper, self.stepper.target.config.vocab_size
        stepper.state[CONTEXT] = context
        stepper.extend(1, chunks(context, stepper.cache.k.shape[1]))
        logits = torch.zeros(ROWS, vocabulary, device=stepper.device)
        stepper.stack.lm_head(stepper.target.head, stepper.choice, logits)
        return logits

    def rows(self) -> None:
        """Check that a verify batch gives a token the bits of autoregressive decoding, in any row, with any draft."""
        first = len(self.ids) - ROWS - 1
        self.stepper.set_sampling(*SAMPLING)  # so that the head leaves its logits
        for row in CHECKED_ROWS:
            together = RowRecorder(self.stepper, row, first + row)
            alone = RowRecorder(self.stepper, 0, first + row)
            with self._prefilled():
                self._verify(together, first, self.ids[first : first + ROWS])
                self._verify(alone, first + row, [self.ids[first + row]])
            together.check(alone)

    def _verify(self, rows: RowRecorder, context: int, draft: list[int]) -> None:
        stepper = self.stepper
        stepper.state[CONTEXT], stepper.state[LIVE] = context, len(draft)
        stepper.draft.copy_(torch.tensor([*draft, *[0] * (ROWS - len(draft))]))
        with using_ops(stepper, rows.record(stepper.ops)):
            stepper.verify(False, self._splits)

    def prompts(self) -> None:
        """Check that two tiles of a prompt at once write the same bits as one tile at a time, in every layer."""
        together, alone = self._prompt(2), self._prompt(1)
        for name, tensor in together.items():
            if not same_bits(tensor, alone[name]):
                raise CheckError("a prompt in two tiles", f"{name} are not those of 16 rows at a time")

    def _prompt(self, tiles: int) -> dict[str, Tensor]:
        stepper, rows = self.stepper, 2 * ROWS
        self.pair.forget()
        stepper.tokens[: len(self.ids)] = torch.tensor(self.ids, dtype=torch.int32)
        for length in range(0, rows, tiles * ROWS):
            stepper.state[CONTEXT] = length
            stepper.extend(tiles, self._splits)
        left: dict[str, Tensor] = {}
        for index in range(len(stepper.target.layers)):
            cache = stepper.cache.layer(index)
            for name, tensor in zip(("keys", "values", "scales of keys", "scales"), cache.tensors(), strict=False):
                left[f"the {name} of layer {index}"] = tensor[:rows].clone()
        if stepper.block:
            left["the drafter's taps"] = stepper.block.ring.ring[:rows].clone()
        self.pair.forget()
        return left

    def texts(self) -> None:
        """Check that an answer is the same in a second run, and with drafts of every kind, some long and right."""
        plain = self._text("plain", TEXT_TOKENS)
        _same("plain", "a second run writes another text", self._text("plain", TEXT_TOKENS), plain)
        self.pair.set_documents([[*self.ids[-4:], *plain[: TEXT_TOKENS // 2], *plain[:4]]])
        for mode in self._modes[1:]:
            _same(mode, "drafts change the text", self._text(mode, TEXT_TOKENS), plain)
        self.pair.set_documents([])

    def sampled_texts(self) -> None:
        """Check that drafts do not change sampled texts, on the device and on the host."""
        for params in (SAMPLED_ON_DEVICE, SAMPLED_ON_HOST):
            plain = self._text("plain", SAMPLED_TOKENS, params)
            for mode in self._modes:
                text = self._text(mode, SAMPLED_TOKENS, params)
                _same(f"{mode}, sampled", "drafts change the text", text, plain)

    def _text(self, mode: StepMode, count: int, params: SamplingParams | None = None) -> list[int]:
        pair = self.pair.with_mode(mode)
        pair.forget()
        request = Request(self.ids, count, params or SamplingParams())
        return [token for step in generate(pair, request) for token in step.tokens]

    def graphs(self) -> None:
        """Check that replayed graphs write the same bits as the launches they were captured from."""
        for mode in self._modes:
            with self._prefilled():
                self._replay(mode, len(self.ids) - 1)

    def _replay(self, mode: StepMode, length: int) -> None:
        """Compare steps run as graphs with the same steps run as launches that all cover the longest context."""
        stepper, runner, start = self.stepper, self.pair.runner, self.stepper.state.clone()
        splits = chunks(length + ROWS * REPLAYED_STEPS, stepper.cache.k.shape[1])

        def replayed(step: int) -> None:
            runner.step(mode, True, length + ROWS * step)
            runner.synchronize()

        ours = list(self._steps(replayed))
        stepper.state.copy_(start)
        theirs = list(self._steps(lambda _: stepper.step(mode, True, splits)))
        for step, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
            for name, tensor in one.items():
                if not same_bits(tensor, other[name]):
                    raise CheckError(f"the graph of {mode}", f"step {step} has another {name} than its launches")

    def _steps(self, run: Callable[[int], None]) -> Iterator[dict[str, Tensor]]:
        stepper = self.stepper
        for step in range(REPLAYED_STEPS):
            run(step)
            left = {"state": stepper.state, "draft": stepper.draft, "choice": stepper.choice}
            yield {name: tensor.clone() for name, tensor in (left | {"hidden": stepper.stack.buffers.hidden}).items()}

    @property
    def bucket_borders(self) -> list[int]:
        """Context lengths at which other graphs and other attention kernels begin."""
        room = self.stepper.context - 4 * ROWS
        return [slots_of(bucket) for bucket in BUCKETS[:-1] if slots_of(bucket) <= room]

    def long_context(self) -> None:
        """Check operations beyond each border, then graphs across it."""
        with self._prefilled():
            for border in self.bucket_borders:
                self._stretch(border + ROWS)
                splits = chunks(border + 2 * ROWS, self.stepper.cache.k.shape[1])
                with using_ops(self.stepper, compare_with_references(self.stepper, self.watch)):
                    self.stepper.step(self._modes[-1], True, splits)
                for mode in self._modes:
                    self._stretch(border - 2 * ROWS)
                    self._replay(mode, border - 2 * ROWS)

    def _stretch(self, length: int) -> None:
        """Fill a context of `length` tokens with repetitions of the prompt's keys, values and tokens."""
        stepper, kept = self.stepper, len(self.ids) - 1
        index = torch.arange(length, device=stepper.device) % kept
        for cache in (stepper.cache, *([stepper.block.cache] if stepper.block else [])):
            for tensor in cache.tensors():
                codes = tensor.view(torch.uint8)  # not every type can be indexed
                codes[:, :length] = codes[:, index]
        stepper.tokens[:length] = stepper.tokens[index]
        stepper.tokens[length] = self.ids[-1]
        stepper.state.zero_()
        stepper.state[CONTEXT], stepper.state[DRAFTER] = length, length

    @property
    def _modes(self) -> list[StepMode]:
        return ["plain", "lookup", *(DRAFTING[::-1] if self.stepper.block else ())]

    @property
    def _splits(self) -> int:
        return chunks(len(self.ids) + TEXT_TOKENS, self.stepper.cache.k.shape[1])

    @contextmanager
    def _prefilled(self) -> Iterator[None]:
        """Return a context in which the prompt is computed; drop the sequence afterwards."""
        self.pair.forget()
        self.pair.prefill(self.ids)
        self.pair.rollback(len(self.ids))  # resets the device's state
        try:
            yield
        finally:
            self.pair.runner.synchronize()
            self.pair.forget()


def _same(operation: str, what: str, got: list[int], want: list[int]) -> None:
    if got != want:
        first = next((i for i, (one, other) in enumerate(zip(got, want, strict=False)) if one != other), len(want))
        raise CheckError(operation, f"{what} from token {first + 1} on")


def _same_choice(operation: str, ours: Tensor, theirs: Tensor) -> None:
    """Raise CheckError if a row's likeliest token, of logits [16, V], is not among the likeliest of the other."""
    likely = theirs.log_softmax(-1)
    regret = (likely.amax(-1) - likely.gather(1, ours.argmax(-1, keepdim=True))[:, 0]).nan_to_num(float("inf"))
    if float(regret.max()) > MAX_REGRET_NATS:
        row, nats = int(regret.argmax()), float(regret.max())
        raise CheckError(operation, f"after token {row} the likeliest is {nats:.2f} nats off the reference's")
