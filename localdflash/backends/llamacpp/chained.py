"""Autoregressive draft heads on the target's hidden states, through llama.cpp: multi-token prediction and EAGLE-3.

Both read pairs of a token and the hidden state before it: the target's for committed tokens, the head's own in a draft.
So the cache entries of a draft are dropped, and written again with the target's states before the next draft. An
unknown state is zero.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.draft_model import MAX_DRAFTED, pick_best
from localdflash.backends.llamacpp.llama_kv_cache import read_state, write_state
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.base.errors import LocaldflashError, OutOfMemory
from localdflash.base.machine.cores import physical_cores
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.shapes.drafter_kind import eagle3_taps
from localdflash.models.weights.gguf import read_header

MAX_PAIRS = 256  # per batch
WAITING_BYTES = 32 * 1024 * 1024  # of features that wait for a draft
States = NDArray[np.float32]  # [rows, H of the head]


def context_params(context: int, threads: int = 0) -> Any:
    """Return the parameters of a head's context for `context` tokens."""
    params = api.llama_context_default_params()
    params.n_ctx = context + MAX_DRAFTED
    params.n_batch = params.n_ubatch = MAX_PAIRS
    params.n_seq_max = 1
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.no_perf, params.op_offload = True, False
    params.type_k = params.type_v = api.GGML_TYPE_F32  # one layer: the memory is small, and no conversion
    params.n_threads = params.n_threads_batch = threads or len(physical_cores())
    return params


def mtp_params(context: int, threads: int = 0) -> Any:
    """Return the context parameters of a head in the target's own file."""
    params = context_params(context, threads)
    params.ctx_type = api.LLAMA_CONTEXT_TYPE_MTP
    return params


def eagle3_params(target: Any, context: int, threads: int = 0) -> Any:
    """Return the context parameters of an EAGLE-3 drafter, which may use the tables of the context `target`."""
    params = context_params(context, threads)
    params.ctx_other = target
    return params


class ChainedDrafter(ABC):
    """See `Drafter`. The pair of a token is stored `position_offset` positions before the token's own."""

    name: str
    taps: tuple[int, ...]  # blocks of the target
    is_model = is_autoregressive = True
    max_draft_tokens = MAX_DRAFTED
    position_offset = 0

    def __init__(self, model: Any, params: Any, target: LlamaCppTarget) -> None:
        self.model = model
        self.handle = llama_library.new_context(model, params)
        if not self.handle:
            raise OutOfMemory(f"no memory for the drafter's context: {llama_library.last_message()}")
        self._memory = api.llama_get_memory(self.handle)
        self._batch = api.llama_batch_ext_init(self.handle)
        llama_library.set_heads(self.handle, all_rows=False)
        self._logits_address, self._states_address = llama_library.logits_reader(), llama_library.heads_reader()
        self._vocab_size, self._hidden = target.vocab_size, int(api.llama_model_n_embd(model))
        self._watch = target.watch
        self.length = self._read_length = 0  # observed tokens, and tokens whose pairs are in the cache
        self._waiting: list[int] = []
        self._taps: list[TargetFeatures] = []  # of the waiting tokens
        self._before = self._unknown()  # state of the last token in the cache

    @abstractmethod
    def states(self, taps: TargetFeatures) -> States:
        """Return the hidden states that the head reads."""

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        """See `Drafter`."""
        if taps is None:
            raise LocaldflashError(f"{self.name}: no hidden-state features; the target's taps are off")
        self._waiting += ids
        self._taps.append(taps)
        self.length += len(ids)
        if len(self._waiting) * taps.shape[1] * taps.itemsize > WAITING_BYTES:
            self._read_waiting()

    @property
    def unread_tokens(self) -> int:
        """See `Drafter`."""
        return len(self._waiting)

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the token's softmax probability."""
        limit = min(limit, self.max_draft_tokens)
        if limit < 1 or not self.length:
            return EMPTY_DRAFT
        self._read_waiting()
        token, state, tokens, confidence = anchor, self._before, list[int](), list[float]()
        for node in range(limit):
            self._decode([token], state, self.length + node, with_logits=True)
            token, probability = pick_best(self._row(self._logits_address, self._vocab_size))
            state = self._row(self._states_address, self._hidden).reshape(1, -1).copy()
            tokens.append(token)
            confidence.append(probability)
        self._drop_from(self.length)
        return Draft(self.name, tokens, confidence)

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        if length < self._read_length:
            self._drop_from(length)
            self._read_length, self._waiting, self._taps = length, [], []
            self._before = self._unknown()
        elif self._taps:
            remaining = length - self._read_length
            self._waiting, self._taps = self._waiting[:remaining], [np.concatenate(self._taps)[:remaining]]
        self.length = length

    def save(self) -> bytes:
        """See `Drafter`."""
        self._read_waiting()
        return self._before.tobytes() + read_state(self.handle)

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        before, cache = state[: self._before.nbytes], state[self._before.nbytes :]
        api.llama_memory_clear(self._memory, True)
        write_state(self.handle, cache)
        self._before = np.frombuffer(before, np.float32).reshape(1, -1)
        self.length = self._read_length = len(ids)
        self._waiting, self._taps = [], []

    def close(self) -> None:
        """Free the context; call it before the target's `close`."""
        if self.handle:
            api.llama_batch_ext_free(self._batch)
            api.llama_free(self.handle)
            self.handle = None

    def _unknown(self) -> States:
        return np.zeros((1, self._hidden), np.float32)

    def _read_waiting(self) -> None:
        if not self._waiting:
            return
        ids, taps = self._waiting, np.concatenate(self._taps)
        for begin in range(0, len(ids), MAX_PAIRS):
            states = self.states(taps[begin : begin + MAX_PAIRS])
            chunk, before = ids[begin : begin + MAX_PAIRS], np.concatenate((self._before, states[:-1]))
            skipped = 1 if self._read_length < self.position_offset else 0  # the first pair would be before position 0
            if len(chunk) > skipped:
                self._decode(chunk[skipped:], before[skipped:], self._read_length + skipped, with_logits=False)
            self._read_length += len(chunk)
            self._before = states[-1:].copy()
        self._waiting, self._taps = [], []

    def _decode(self, ids: Sequence[int], before: States, first: int, with_logits: bool) -> None:
        """Append pairs of tokens from position `first` on, with logits if `with_logits`."""
        api.llama_batch_ext_clear(self._batch)
        for position, (token, state) in enumerate(zip(ids, np.ascontiguousarray(before), strict=True), first):
            index = llama_library.add_to_batch(self._batch, token, position - self.position_offset, output=with_logits)
            if not api.llama_batch_ext_set_embd_token(self._batch, index, llama_library.embedding_of(state)):
                raise LocaldflashError(f"llama.cpp rejected a drafter's batch: {llama_library.last_message()}")
        llama_library.run_batch(self.handle, self._batch, self._watch)

    def _row(self, reader: Any, columns: int) -> NDArray[np.float32]:
        """Return the result row of the last decode; valid until the next one."""
        if not (address := reader(self.handle)):
            raise LocaldflashError("llama.cpp returned nothing for a draft")
        row: NDArray[np.float32] = llama_library.float_rows(address, 1, columns)[0]
        return row

    def _drop_from(self, length: int) -> None:
        api.llama_memory_seq_rm(self._memory, 0, max(length - self.position_offset, 0), -1)


class LlamaCppMtpDrafter(ChainedDrafter):
    """Multi-token prediction head in the target's own file. It reads the last block's output."""

    name = "mtp"

    def __init__(self, target: LlamaCppTarget, threads: int = 0) -> None:
        super().__init__(target.model, mtp_params(target.context, threads), target)
        self.taps = (target.layers - 1,)

    def states(self, taps: TargetFeatures) -> States:
        """See `ChainedDrafter`."""
        return taps


class LlamaCppEagle3Drafter(ChainedDrafter):
    """EAGLE-3 drafter, whose encoder fuses three features; logits outside a short vocabulary are -inf."""

    name = "eagle3"
    position_offset = 1

    def __init__(self, path: Path, target: LlamaCppTarget, threads: int = 0) -> None:
        header = read_header(path)
        self.taps = eagle3_taps(header)
        model = llama_library.load_model(path, placement=target.placement.all_layers())
        super().__init__(model, eagle3_params(target.handle, target.context, threads), target)

    def states(self, taps: TargetFeatures) -> States:
        """See `ChainedDrafter`; at most `MAX_PAIRS` rows."""
        free = max(self._read_length - self.position_offset, 0)  # llama.cpp expects it, though it stores nothing
        api.llama_batch_ext_clear(self._batch)
        for position, row in enumerate(np.ascontiguousarray(taps), free):
            llama_library.add_to_batch(self._batch, row, position, output=True)
        llama_library.run_batch(self.handle, self._batch, self._watch, api.LLAMA_PROCESS_TYPE_ENCODE)
        if not (address := self._states_address(self.handle)):
            raise LocaldflashError("llama.cpp returned nothing for a draft")
        found: States = llama_library.float_rows(address, len(taps), self._hidden).copy()
        return found

    def close(self) -> None:
        """See `ChainedDrafter`."""
        if self.handle:
            super().close()
            api.llama_model_free(self.model)
            self.model = None
