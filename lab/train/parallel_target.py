"""Batched decoding of many conversations in llama.cpp, one decode per step, each with its own KV cache.

Logits may differ from autoregressive decoding in the last bits, which training data tolerate.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
import torch
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.lab.train.batched_answers import ParallelStep
from localdflash.lab.train.stored_answers import find_likeliest


class ParallelTarget:
    """`Parallel` on llama.cpp: slots of `context` tokens; `taps` are 0-based layers."""

    def __init__(self, path: Path, sequences: int, context: int, taps: Sequence[int], threads: int) -> None:
        self.model = llama_library.load_model(path)
        self.sequences, self.context, self.taps = sequences, context, tuple(taps)
        self.hidden_size: int = api.llama_model_n_embd(self.model)
        self.vocab_size: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.handle = llama_library.new_context(self.model, self._params(threads))
        if not self.handle:
            raise OutOfMemory(
                f"{path}: no memory for {sequences} contexts of {context} tokens: {llama_library.last_message()}"
            )
        self._memory = api.llama_get_memory(self.handle)
        self._batch = api.llama_batch_init(max(context, sequences), 0, 1)
        for tap in taps:
            llama_library.set_tap(self.handle, tap + 1, True)
        self._tap_address, self._logits_address = llama_library.tap_reader(), llama_library.logits_reader()
        self.lengths = [0] * sequences  # tokens decoded in each slot

    def _params(self, threads: int) -> Any:
        params = api.llama_context_default_params()
        params.n_ctx = self.context * self.sequences
        params.n_batch = params.n_ubatch = max(self.context, self.sequences)
        params.n_seq_max = self.sequences
        params.kv_unified = False
        params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.type_k = params.type_v = api.GGML_TYPE_F32
        params.no_perf = True
        params.n_threads = params.n_threads_batch = threads
        return params

    def begin(self, slot: int, prompt: Sequence[int]) -> NDArray[np.float32]:
        """See `Parallel`."""
        api.llama_memory_seq_rm(self._memory, slot, -1, -1)
        if not 1 < len(prompt) < self.context:
            raise LocaldflashError(f"prompt of {len(prompt)} tokens: does not fit into a slot of {self.context}")
        self._decode([(slot, position, token) for position, token in enumerate(prompt[:-1])], with_logits=())
        self.lengths[slot] = len(prompt) - 1
        return self._read_taps(len(prompt) - 1)

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> ParallelStep:
        """See `Parallel`."""
        rows = [(slot, self.lengths[slot], token) for slot, token in zip(slots, tokens, strict=True)]
        if max(length for _, length, _ in rows) >= self.context:
            raise LocaldflashError(f"slot of {self.context} tokens: full")
        self._decode(rows, with_logits=range(len(rows)))
        for slot in slots:
            self.lengths[slot] += 1
        logits = self._read_logits(len(rows))
        return ParallelStep(self._read_taps(len(rows)), logits.argmax(-1), find_likeliest(torch.from_numpy(logits)))

    def close(self) -> None:
        """See `Parallel`."""
        if self.handle:
            api.llama_batch_free(self._batch)
            api.llama_free(self.handle)
            api.llama_model_free(self.model)
            self.handle = self.model = None

    def _decode(self, rows: Sequence[tuple[int, int, int]], with_logits: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (slot, position, token) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, slot, False
        for i in with_logits:
            batch.logits[i] = True
        status = api.llama_decode(self.handle, batch)
        if status == 1:
            raise OutOfMemory(f"context of {self.context} tokens: full")
        if status:
            raise LocaldflashError(f"llama.cpp failed to decode (status {status}): {llama_library.last_message()}")

    def _read_logits(self, rows: int) -> NDArray[np.float32]:
        address = self._logits_address(self.handle)
        if not address:
            raise LocaldflashError("llama.cpp returned no logits")
        return llama_library.float_rows(address, rows, self.vocab_size)

    def _read_taps(self, rows: int) -> NDArray[np.float32]:
        taps = np.empty((rows, len(self.taps) * self.hidden_size), np.float32)
        for i, tap in enumerate(self.taps):
            address = self._tap_address(self.handle, tap + 1)
            if not address:
                raise ModelError(
                    f"tap {tap}: llama.cpp does not return this layer's output for this architecture; use --backend cpu"
                )
            columns = slice(i * self.hidden_size, (i + 1) * self.hidden_size)
            taps[:, columns] = llama_library.float_rows(address, rows, self.hidden_size)
        return taps
