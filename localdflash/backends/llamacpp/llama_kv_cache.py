"""The cache of one sequence in llama.cpp: what it holds, how far back it can go, and its states as bytes.

Keys and values of a row stand by themselves: any number of the last rows can be dropped. A recurrent layer has one
state for all rows. Of those after each row of the last decode llama.cpp keeps copies (`n_rs_seq`), and `seq_rm` goes
back to one of them, once. Asked to go further, after a load or for all of the decode's rows, it says that it did and
goes to a state that is none of these rows'. So what may be taken back is counted here, and nothing else is asked for;
to go further back there are checkpoints, which this module copies out.

A shorter part of a sequence needs the keys that a window has left behind. Of a saved sequence llama.cpp leaves them
out, so that what has no states is saved as a whole context; and the first decode after a load would take their cells,
were they not of a second sequence until then.
"""

import ctypes
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import MOST, MOST_WITH_STATES
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.checkpoints import Checkpoints

KEYS_LEFT_OUT = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
FORM = 3  # of what targets and drafters save
OWN, HOLDING = 0, 1  # sequences


def hold_two(params: Any) -> None:
    """Set a context's parameters so that a second sequence may hold cells of the first; not with states, which each
    sequence has apart.
    """
    params.n_seq_max, params.kv_unified = 2, True


class SequenceCache:
    """The only sequence of a context. It holds `length` tokens, those of a decode that waits for `keep` included."""

    def __init__(self, model: Any, handle: Any) -> None:
        self._handle, self._memory = handle, api.llama_get_memory(handle)
        self.has_states = has_states(model)
        self.length = 0
        self._held = False
        self._copies: int = api.llama_n_rs_seq(handle)  # states of earlier rows that llama.cpp keeps
        self._undoes = 0  # rows that may be taken back
        self._checkpoints = Checkpoints[bytes]()

    def decoded(self, rows: int) -> None:
        """Count the rows of a decode."""
        self.length += rows
        self._undoes = min(rows - 1, self._copies)
        if self._held:
            api.llama_memory_seq_rm(self._memory, HOLDING, -1, -1)
            self._held = False

    def crop(self, length: int) -> int:
        """Drop what is after `length`, and more where no state of it is there; return what is left."""
        self._checkpoints.drop_after(length)
        if length and length >= self.length:  # of nothing even what a failed decode left is dropped
            return self.length
        if self.has_states and length and self.length - length > self._undoes:
            length = self._restored()
        if self._held:
            api.llama_memory_seq_rm(self._memory, HOLDING, length, -1)
        if not api.llama_memory_seq_rm(self._memory, OWN, length, -1):
            raise ModelError(f"llama.cpp cannot go back from {self.length} to {length} tokens: load the model again")
        self.length, self._undoes = length, 0
        return length

    def _restored(self) -> int:
        """Put the newest checkpoint's states in place; its length, 0 without one."""
        if (newest := self._checkpoints.newest()) is None:
            return 0
        length, states = newest
        self._write(states, KEYS_LEFT_OUT)
        return length

    def checkpoint(self, prompt_ended: bool) -> None:
        """Copy the states out, where that is worth it."""
        if self.has_states and self.length and self._checkpoints.wants(self.length, prompt_ended):
            self._checkpoints.keep(self.length, self._read(KEYS_LEFT_OUT))

    @property
    def copied_bytes(self) -> int:
        """Bytes of the checkpoints."""
        return sum(map(len, self._checkpoints.states))

    def save(self) -> bytes:
        """The whole cache, for `load`."""
        if self.has_states:
            return self._read(0)
        buffer = (ctypes.c_uint8 * api.llama_state_get_size(self._handle))()
        written = api.llama_state_get_data(self._handle, buffer, len(buffer))
        return bytes(memoryview(buffer)[:written])

    def load(self, saved: bytes, length: int) -> None:
        """Replace the cache by a saved one."""
        self.crop(0)
        if self.has_states:
            self._write(saved, 0)
        else:
            _accepted(api.llama_state_set_data(self._handle, _buffer(saved), len(saved)))
            api.llama_memory_seq_cp(self._memory, OWN, HOLDING, -1, -1)
            self._held = True
        self.length, self._undoes = length, 0

    def _read(self, flags: int) -> bytes:
        size = api.llama_state_seq_get_size_ext(self._handle, OWN, flags)
        buffer = (ctypes.c_uint8 * size)()
        written = api.llama_state_seq_get_data_ext(self._handle, buffer, size, OWN, flags)
        return bytes(memoryview(buffer)[:written])

    def _write(self, saved: bytes, flags: int) -> None:
        _accepted(api.llama_state_seq_set_data_ext(self._handle, _buffer(saved), len(saved), OWN, flags))


def _buffer(saved: bytes) -> "ctypes.Array[ctypes.c_uint8]":
    return (ctypes.c_uint8 * len(saved)).from_buffer_copy(saved)


def _accepted(read: int) -> None:
    if not read:
        raise LocaldflashError(f"llama.cpp refused a saved state: {llama_library.last_message()}")


def has_states(model: Any) -> bool:
    """Whether a model has recurrent layers."""
    return bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))


def most_rows(model: Any) -> int:
    """The most rows of a decode all but one of which can be taken back; 1 where llama.cpp has no copies of states."""
    if not has_states(model):
        return MOST
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_rs_seq = 256, 2, 2, 1
    handle = llama_library.new_context(model, params)
    if not handle:
        raise ModelError(f"llama.cpp has no context for this model: {llama_library.last_message()}")
    copies = api.llama_n_rs_seq(handle)
    api.llama_free(handle)
    return MOST_WITH_STATES if copies else 1
