"""KV cache of one sequence in llama.cpp: its length, how far it can be rolled back, and its saved states.

A recurrent layer has one state. llama.cpp keeps copies of the states after each row of the last decode (`n_rs_seq`),
and `seq_rm` restores one of them once. Further requests report success but restore a wrong state. So this module counts
the rows that may be dropped, and rolls back further by restoring checkpoints that it copied out.

When llama.cpp saves a sequence, it omits keys outside a sliding window, so a cache without states is saved as a whole
context. The first decode after a load would overwrite these keys, so a second sequence holds their cells until then.
"""

import ctypes
from typing import Any

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, MAX_WIDTH_WITH_STATES
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.checkpoints import Checkpoints

WITHOUT_KEYS = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: only the recurrent states
STATE_FORMAT = 3  # version of the states that targets and drafters save
OWN_SEQUENCE, HOLDING_SEQUENCE = 0, 1


def allow_second_sequence(params: Any) -> None:
    """Let a second sequence hold cells of the first; not for models with states, which sequences cannot share."""
    params.n_seq_max, params.kv_unified = 2, True


class SequenceCache:
    """The only sequence of a context. It holds `length` tokens, including a decode that waits for `keep`."""

    def __init__(self, model: Any, handle: Any) -> None:
        self._handle, self._memory = handle, api.llama_get_memory(handle)
        self.has_states = has_states(model)
        self.length = 0
        self._is_holding_cells = False
        self._copies: int = api.llama_n_rs_seq(handle)  # number of earlier states that llama.cpp keeps
        self._revertible_rows = 0
        self._checkpoints = Checkpoints[bytes]()

    def record_decode(self, rows: int) -> None:
        """Count the rows of a decode, and release the cells that the second sequence holds."""
        self.length += rows
        self._revertible_rows = min(rows - 1, self._copies)
        if self._is_holding_cells:
            api.llama_memory_seq_rm(self._memory, HOLDING_SEQUENCE, -1, -1)
            self._is_holding_cells = False

    def crop(self, length: int) -> int:
        """Drop the tokens after `length`, or more if there is no state for `length`; return the new length."""
        self._checkpoints.drop_after(length)
        if length and length >= self.length:  # at length 0, leftovers of a failed decode are dropped too
            return self.length
        if self.has_states and length and self.length - length > self._revertible_rows:
            length, states = self._checkpoints.longest() or (0, b"")
            if states:
                write_state(self._handle, states, WITHOUT_KEYS)
        if self._is_holding_cells:
            api.llama_memory_seq_rm(self._memory, HOLDING_SEQUENCE, length, -1)
        if not api.llama_memory_seq_rm(self._memory, OWN_SEQUENCE, length, -1):
            raise ModelError(f"llama.cpp cannot roll back from {self.length} to {length} tokens; load the model again")
        self.length, self._revertible_rows = length, 0
        return length

    def checkpoint(self, prompt_ended: bool) -> None:
        """Copy the recurrent states out if a checkpoint is due; without recurrent layers, do nothing."""
        if self.has_states and self.length and self._checkpoints.should_add(self.length, prompt_ended):
            self._checkpoints.add(self.length, read_state(self._handle, WITHOUT_KEYS))

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the checkpoints in bytes."""
        return sum(map(len, self._checkpoints.states))

    def save(self) -> bytes:
        """Return the whole cache, for `load`."""
        if self.has_states:
            return read_state(self._handle)
        buffer = (ctypes.c_uint8 * api.llama_state_get_size(self._handle))()
        written = api.llama_state_get_data(self._handle, buffer, len(buffer))
        return bytes(memoryview(buffer)[:written])

    def load(self, saved: bytes, length: int) -> None:
        """Replace the cache by `saved`, a cache of `length` tokens."""
        self.crop(0)
        if self.has_states:
            write_state(self._handle, saved)
        else:
            buffer = (ctypes.c_uint8 * len(saved)).from_buffer_copy(saved)
            _check_read(api.llama_state_set_data(self._handle, buffer, len(saved)))
            api.llama_memory_seq_cp(self._memory, OWN_SEQUENCE, HOLDING_SEQUENCE, -1, -1)
            self._is_holding_cells = True
        self.length, self._revertible_rows = length, 0


def read_state(handle: Any, flags: int = 0) -> bytes:
    """Return the state of a context's own sequence, with flags `WITHOUT_KEYS` only its recurrent states."""
    buffer = (ctypes.c_uint8 * api.llama_state_seq_get_size_ext(handle, OWN_SEQUENCE, flags))()
    written = api.llama_state_seq_get_data_ext(handle, buffer, len(buffer), OWN_SEQUENCE, flags)
    return bytes(memoryview(buffer)[:written])


def write_state(handle: Any, saved: bytes, flags: int = 0, sequence: int = OWN_SEQUENCE) -> None:
    """Restore a saved state of one sequence."""
    buffer = (ctypes.c_uint8 * len(saved)).from_buffer_copy(saved)
    _check_read(api.llama_state_seq_set_data_ext(handle, buffer, len(saved), sequence, flags))


def _check_read(read: int) -> None:
    if not read:
        raise LocaldflashError(f"llama.cpp rejected a saved state: {llama_library.last_message()}")


def has_states(model: Any) -> bool:
    """Return whether a model has recurrent layers."""
    return bool(api.llama_model_is_recurrent(model) or api.llama_model_is_hybrid(model))


def max_revertible_width(model: Any) -> int:
    """Return the largest batch of which all rows but one can be dropped; 1 if llama.cpp keeps no copies of states."""
    if not has_states(model):
        return MAX_WIDTH
    params = api.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_rs_seq = 256, 2, 2, 1
    handle = llama_library.new_context(model, params)
    if not handle:
        raise ModelError(f"llama.cpp has no context for this model: {llama_library.last_message()}")
    copies = api.llama_n_rs_seq(handle)
    api.llama_free(handle)
    return MAX_WIDTH_WITH_STATES if copies else 1
