"""Which widths of a decode give a row the same bits: measured, for it depends on device, file, build and flags.

At each place (tokens before, cells in use) every width decodes the same tokens once; for each width that plain decoding
could have, the same tokens are decoded one by one, filler rows beside them. A width whose every row equals the plain
one, in its slot and beside its neighbours, at every place, is of that class. Hidden states are compared besides logits:
activations are rounded to 8 bits before a product, the head's too, which hides small differences from what follows.

With recurrent layers a row depends on the states that the rows before it left. So the states that a decode leaves must
agree, too: half of its rows are taken back and computed again from what is left, in a decode of the same width.
"""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import MOST, MOST_WITH_STATES, Flags
from localdflash.backends.llamacpp.llama_kv_cache import SequenceCache, has_states
from localdflash.base.errors import ModelError

WIDTHS = (*range(1, 18), 20, 24, 28, 32)
PLAIN = (1, 2, 4, 8, 16)
PLACES = 3
LEAST = 8  # rows of the widest decode of a class: prompts are read in such
OWN = 64  # tokens of the sequence between two places
OTHERS = 9  # copies of the sequence that fill the cache between two places: 640 cells, which lone rows are split over
Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Class:
    """Widths that agree, ascending, and whether rows change where the padded cache grows."""

    widths: tuple[int, ...]
    borders: bool


class Decoder(Protocol):
    """A context that classes are measured in."""

    def go_to(self, place: int) -> None:
        """Move to place 0, 1 or 2, in this order.

        Where all rows stand by themselves the second differs from the first in nothing but the cells in use.
        """

    def rows(self, width: int) -> Rows:
        """Hidden states and logits [width, H + V] of so many tokens from here; nothing is kept."""

    def again(self, width: int) -> Rows | None:
        """The second half of them once more, from what is left of the decode when they are dropped; None where every
        row stands by itself.
        """

    def one_by_one(self, width: int, count: int) -> Rows:
        """The same [count, H + V] of the same tokens, each decoded with filler rows up to a width; nothing is kept."""


def classes(decoder: Decoder, plains: Sequence[int] = PLAIN, widths: Sequence[int] = WIDTHS) -> list[Class]:
    """The classes of widths that plain decoding could have, in their order, wide enough to read a prompt in."""
    found: list[Class] = []
    for plain in plains:
        if any(plain in known.widths for known in found):
            continue
        if more := _class_of(decoder, plain, [width for width in widths if width >= plain]):
            found.append(more)
    return found


def _class_of(decoder: Decoder, plain: int, widths: list[int]) -> Class | None:
    seen = []
    for place in range(PLACES):
        decoder.go_to(place)
        expected = decoder.one_by_one(plain, widths[-1])
        widths = [width for width in widths if _agrees(decoder, width, expected[:width])]
        if plain not in widths or widths[-1] < LEAST:
            return None
        seen.append(expected)
    borders = not np.array_equal(seen[0][: widths[-1]], seen[1][: widths[-1]])
    return Class(tuple(widths), borders)


def _agrees(decoder: Decoder, width: int, expected: Rows) -> bool:
    if not np.array_equal(decoder.rows(width), expected):
        return False
    again = decoder.again(width)
    return again is None or np.array_equal(again, expected[width // 2 :])


class LlamaDecoder:
    """See `Decoder`. Close it; the model is the caller's."""

    def __init__(self, model: Any, flags: Flags, threads: int) -> None:
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 1024, MOST, MOST
        self._has_states = has_states(model)
        params.n_seq_max, params.kv_unified = 1 if self._has_states else OTHERS + 1, True
        params.n_rs_seq = MOST_WITH_STATES - 1
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
        self._tokens = np.random.default_rng(0).integers(0, self._vocab, (OTHERS + 2) * OWN + MOST).tolist()
        self._batch = api.llama_batch_init(MOST, 0, 1)
        self._length = 0

    def go_to(self, place: int) -> None:
        """See `Decoder`; at the last place the sequence's own cells lie at both ends of those in use.

        Each sequence would have states of its own, so that a cache with states is filled by one long sequence.
        """
        if place == 0:
            self._length = self._cache.crop(0)
        elif place == 1 and not self._has_states:
            self._fill_cache()
            return
        for _ in range(0, OWN * (OTHERS if place == 1 else 1), MOST):
            self._decode(self._next(MOST), False)
            self._length += MOST
        self._cache.checkpoint(prompt_ended=True)

    def rows(self, width: int) -> Rows:
        """See `Decoder`."""
        found = self._decode(self._next(width), True)
        self._go_back(self._length)
        return found

    def ms(self, width: int) -> float:
        """Milliseconds of a decode of so many rows; nothing is kept."""
        tokens = self._next(width)
        began = time.perf_counter()
        self._decode(tokens, True)
        took = time.perf_counter() - began
        self._go_back(self._length)
        return took * 1e3

    def again(self, width: int) -> Rows | None:
        """See `Decoder`."""
        start, kept = self._length, width // 2
        if not self._has_states or not kept:
            return None
        self._decode(self._next(width), True)
        self._go_back(start + kept)
        found = self._decode(self._next(width), True)
        self._go_back(start)
        return found[: width - kept]

    def one_by_one(self, width: int, count: int) -> Rows:
        """See `Decoder`."""
        start, found = self._length, []
        for token in self._next(count):
            found.append(self._decode([token] * width, True)[0])
            self._go_back(self._length + 1)
        self._go_back(start)
        return np.array(found)

    def close(self) -> None:
        """Free the context."""
        api.llama_batch_free(self._batch)
        api.llama_free(self.handle)

    def _next(self, count: int) -> list[int]:
        return self._tokens[self._length : self._length + count]

    def _fill_cache(self) -> None:
        """Put copies of the sequence beside it, which its rows do not see."""
        size = api.llama_state_seq_get_size(self.handle, 0)
        state = (ctypes.c_uint8 * size)()
        api.llama_state_seq_get_data(self.handle, state, size, 0)
        for other in range(1, OTHERS + 1):
            if not api.llama_state_seq_set_data(self.handle, state, size, other):
                raise ModelError(f"llama.cpp cannot copy this model's cache: {llama_library.last_message()}")

    def _go_back(self, length: int) -> None:
        """Drop what is after so many tokens."""
        self._length = self._cache.crop(length)
        if self._length != length:
            raise ModelError(f"llama.cpp went back to {self._length} tokens, not to {length}: it cannot be measured")

    def _decode(self, tokens: Sequence[int], wanted: bool) -> Rows:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, self._length + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, wanted
        if status := api.llama_decode(self.handle, batch):
            raise ModelError(f"llama.cpp failed to decode (status {status}): {llama_library.last_message()}")
        self._cache.decoded(len(tokens))
        if not wanted:
            return np.empty((0, self._vocab), np.float32)
        logits = np.ctypeslib.as_array(api.llama_get_logits(self.handle), (len(tokens), self._vocab))
        hidden = np.ctypeslib.as_array(api.llama_get_embeddings(self.handle), (len(tokens), self._hidden))
        return np.concatenate([hidden, logits], 1)
