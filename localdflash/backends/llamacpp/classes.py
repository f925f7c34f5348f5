"""Finds classes of batch widths with bit-identical rows, by measuring: they depend on device, file, build and flags.

A row is the hidden state and the logits of one token. At each position every width decodes the same tokens, and the
base width decodes them one by one, padded with copies of the token. A width belongs to the class if all rows agree.
With recurrent layers the states must agree, too: half of the rows are rolled back and computed again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, MAX_WIDTH_WITH_STATES, Flags
from localdflash.backends.llamacpp.llama_kv_cache import SequenceCache, has_states, read_state, write_state
from localdflash.base.errors import ModelError

WIDTHS = (*range(1, 18), 20, 24, 28, 32)
BASE_WIDTHS = (1, 2, 4, 8, 16)
POSITIONS = 3
MIN_WIDEST = 8  # minimum of a class's largest width, at which prompts are prefilled
OWN_TOKENS = 64  # tokens that the sequence has at position 0
COPIES = 9  # copies of the sequence; they fill 640 cells, from which on single-token batches run other kernels
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class WidthClass:
    """Ascending widths whose rows agree, and whether rows change where the padded cache grows."""

    widths: tuple[int, ...]
    borders: bool


def find_classes(
    decoder: "LlamaDecoder", base_widths: Sequence[int] = BASE_WIDTHS, widths: Sequence[int] = WIDTHS
) -> list[WidthClass]:
    """Find the classes of the base widths, in their order, that are wide enough to prefill a prompt."""
    classes: list[WidthClass] = []
    for base in base_widths:
        if any(base in each.widths for each in classes):
            continue
        if width_class := _find_class(decoder, base, [width for width in widths if width >= base]):
            classes.append(width_class)
    return classes


def _find_class(decoder: "LlamaDecoder", base: int, widths: list[int]) -> WidthClass | None:
    rows_by_position = []
    for position in range(POSITIONS):
        decoder.go_to(position)
        expected = decoder.decode_one_by_one(base, widths[-1])
        widths = [width for width in widths if _agrees(decoder, width, expected[:width])]
        if base not in widths or widths[-1] < MIN_WIDEST:
            return None
        rows_by_position.append(expected)
    borders = not np.array_equal(rows_by_position[0][: widths[-1]], rows_by_position[1][: widths[-1]])
    return WidthClass(tuple(widths), borders)


def _agrees(decoder: "LlamaDecoder", width: int, expected: Rows) -> bool:
    if not np.array_equal(decoder.decode_rows(width), expected):
        return False
    rows_again = decoder.decode_again(width)
    return rows_again is None or np.array_equal(rows_again, expected[width // 2 :])


class LlamaDecoder:
    """Context in which classes are measured. The caller closes it and owns the model."""

    def __init__(self, model: Any, flags: Flags, threads: int) -> None:
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, MAX_WIDTH, MAX_WIDTH
        self._has_states = has_states(model)
        params.n_seq_max, params.kv_unified = 1 if self._has_states else COPIES + 1, True
        params.n_rs_seq = MAX_WIDTH_WITH_STATES - 1
        params.op_offload, params.no_perf = False, True
        params.n_threads = params.n_threads_batch = threads
        params.embeddings, params.pooling_type = True, api.LLAMA_POOLING_TYPE_NONE
        flags.apply(params)
        self.handle = llama_library.new_context(model, params)
        if not self.handle:
            raise ModelError(f"llama.cpp has no context for {flags}: {llama_library.last_message()}")
        self._cache = SequenceCache(model, self.handle)
        self._vocab: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        self._hidden: int = api.llama_model_n_embd(model)
        self._tokens = np.random.default_rng(0).integers(0, self._vocab, (COPIES + 2) * OWN_TOKENS + MAX_WIDTH).tolist()
        self._batch = api.llama_batch_init(MAX_WIDTH, 0, 1)
        self._length = 0

    def go_to(self, position: int) -> None:
        """Move to position 0, 1 or 2, in this order.

        Position 1 decodes more tokens. Without recurrent layers, it copies the sequence instead, so that the copies'
        cells precede those of the tokens decoded at position 2.
        """
        if position == 0:
            self._length = self._cache.crop(0)
        elif position == 1 and not self._has_states:
            state = read_state(self.handle)
            for other in range(1, COPIES + 1):  # copies of the sequence, which its rows do not attend to
                write_state(self.handle, state, sequence=other)
            return
        for _ in range(0, OWN_TOKENS * (COPIES if position == 1 else 1), MAX_WIDTH):
            self._decode(self._next(MAX_WIDTH), False)
            self._length += MAX_WIDTH
        self._cache.checkpoint(prompt_ended=True)

    def decode_rows(self, width: int) -> Rows:
        """Return hidden states and logits [width, H + V] of the next tokens; keep nothing."""
        rows = self._decode(self._next(width), True)
        self._go_back(self._length)
        return rows

    def time_ms(self, width: int) -> float:
        """Return the milliseconds of a batch; keep nothing."""
        tokens = self._next(width)
        began = time.perf_counter()
        self._decode(tokens, True)
        seconds = time.perf_counter() - began
        self._go_back(self._length)
        return seconds * 1e3

    def decode_again(self, width: int) -> Rows | None:
        """Decode, roll back the second half, return its rows decoded again; None if not recurrent or at width 1."""
        start, kept_rows = self._length, width // 2
        if not self._has_states or not kept_rows:
            return None
        self._decode(self._next(width), True)
        self._go_back(start + kept_rows)
        rows = self._decode(self._next(width), True)
        self._go_back(start)
        return rows[: width - kept_rows]

    def decode_one_by_one(self, width: int, count: int) -> Rows:
        """Return the rows [count, H + V] of the same tokens, each in a batch padded to `width`; keep nothing."""
        start, rows = self._length, []
        for token in self._next(count):
            rows.append(self._decode([token] * width, True)[0])
            self._go_back(self._length + 1)
        self._go_back(start)
        return np.array(rows)

    def close(self) -> None:
        """Free the context."""
        api.llama_batch_free(self._batch)
        api.llama_free(self.handle)

    def _next(self, count: int) -> list[int]:
        return self._tokens[self._length : self._length + count]

    def _go_back(self, length: int) -> None:
        self._length = self._cache.crop(length)
        if self._length != length:
            raise ModelError(f"llama.cpp rolled back to {self._length} tokens (expected {length}); cannot measure")

    def _decode(self, tokens: Sequence[int], output_logits: bool) -> Rows:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self._length + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, output_logits
        if status := api.llama_decode(self.handle, batch):
            raise ModelError(f"llama.cpp failed to decode (status {status}): {llama_library.last_message()}")
        self._cache.record_decode(len(tokens))
        if not output_logits:
            return np.empty((0, self._vocab), np.float32)
        logits = np.ctypeslib.as_array(api.llama_get_logits(self.handle), (len(tokens), self._vocab))
        hidden = np.ctypeslib.as_array(api.llama_get_embeddings(self.handle), (len(tokens), self._hidden))
        return np.concatenate([hidden, logits], 1)
