"""Any GGUF model as a target, through llama.cpp's C API.

A target runs in one `DecodeMode`: its batches have the mode's widths, padded with filler rows. If the mode was
certified for this file, device and build, greedy output equals decoding without drafts in the same mode.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.decode_flags import DEFAULT, MAX_WIDTH, DecodeMode
from localdflash.backends.llamacpp.llama_kv_cache import SequenceCache, allow_second_sequence, has_states
from localdflash.backends.llamacpp.placement import PROCESSOR, Placement
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.machine.cores import core_count
from localdflash.base.machine.gpu_watch import UNWATCHED, Watch
from localdflash.engine.draft import Draft
from localdflash.engine.pair import TargetFeatures, Verification
from localdflash.models.memory.fit import check_context

# Architectures whose graphs export layer inputs; requesting layer inputs of another one ends the process.
# fmt: off
EXPORTS_LAYER_INPUTS = frozenset((
    "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2", "minimax-01",
    "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    "qwen4exp",
))
# fmt: on
EXPORTS_LAST_OUTPUT = frozenset(("gemma4", "gpt-oss", "qwen35", "qwen35moe"))  # also export the last block's output


def context_params(context: int, threads: int = 0, mode: DecodeMode = DEFAULT, may_draft: bool = True) -> Any:
    """Return the parameters of a target's context for `context` tokens."""
    params = api.llama_context_default_params()
    params.n_ctx = context + max(mode.max_filler, 1)  # filler rows may follow the last token
    params.n_batch = params.n_ubatch = MAX_WIDTH
    params.n_seq_max = 1
    params.n_rs_seq = mode.widths[-1] - 1 if may_draft else mode.max_filler  # rows that may be rolled back
    params.swa_full = True  # in a ring buffer, rows that are rolled back would overwrite keys
    mode.flags.apply(params)
    params.op_offload = False  # else wide batches would run on a GPU, with other bits
    params.no_perf = True
    params.n_threads = params.n_threads_batch = threads or core_count()
    return params


def check_taps(architecture: str) -> None:
    """Raise ModelError if llama.cpp exports no hidden states of this architecture."""
    if architecture not in EXPORTS_LAYER_INPUTS:
        raise ModelError(
            f"llama.cpp exports no hidden states of {architecture} for the drafter; the model runs without it"
        )


class LlamaCppTarget:
    """See `Target`. `taps` are the 0-based layers (blocks) whose outputs are features; `watch` is held during a decode.

    Unless it `may_draft`, only filler rows can be rolled back.
    """

    def __init__(
        self,
        path: Path,
        context: int = 0,
        threads: int = 0,
        taps: Sequence[int] = (),
        mode: DecodeMode = DEFAULT,
        placement: Placement = PROCESSOR,
        watch: Watch = UNWATCHED,
        may_draft: bool = True,
    ) -> None:
        self.mode, self.placement, self.watch = mode, placement, watch
        self.model = llama_library.load_model(path, repack=mode.flags.repack, placement=placement)
        trained = api.llama_model_n_ctx_train(self.model)
        check_context(context, trained, path.name)
        self.context = context or trained
        self.layers: int = api.llama_model_n_layer(self.model)
        self.hidden_size: int = api.llama_model_n_embd(self.model)
        params = self._params(threads, may_draft)
        if not has_states(self.model):
            allow_second_sequence(params)
        self.handle = llama_library.new_context(self.model, params)
        if not self.handle:
            raise OutOfMemory(f"no memory for a context of {self.context} tokens: {llama_library.last_message()}")
        self.vocab_size: int = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.length = 0
        self._cache = SequenceCache(self.model, self.handle)
        self.is_recurrent = self._cache.has_states
        self._batch = api.llama_batch_init(MAX_WIDTH, 0, 1)
        for i in range(MAX_WIDTH):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0
        self._logits_address = llama_library.logits_reader()
        self._views: dict[tuple[int, int, int], NDArray[np.float32]] = {}
        self.taps: tuple[int, ...] = ()
        self.set_taps(taps)

    def _params(self, threads: int, may_draft: bool) -> Any:
        return context_params(self.context, threads, self.mode, may_draft)

    @property
    def max_width(self) -> int:
        """See `Target`."""
        return self.mode.max_rows(self.length)

    @property
    def checkpoint_bytes(self) -> int:
        """Size in bytes of the checkpoints, in main memory."""
        return self._cache.checkpoint_bytes

    def set_taps(self, blocks: Sequence[int]) -> None:
        """Export the outputs of exactly these blocks; ModelError if llama.cpp cannot."""
        if blocks:
            self._check_taps(blocks)
        for block in set(self.taps) - set(blocks):
            self._export_output(block, False)
        for block in blocks:
            self._export_output(block, True)
        self.taps = tuple(blocks)
        self._tap_address = llama_library.tap_reader() if blocks else None
        self._last_address = llama_library.heads_reader() if blocks else None

    def _check_taps(self, blocks: Sequence[int]) -> None:
        architecture = llama_library.metadata(self.model, "general.architecture") or "?"
        check_taps(architecture)
        last = self.layers - 1 if architecture in EXPORTS_LAST_OUTPUT else self.layers - 2
        for block in blocks:
            if not 0 <= block <= last:
                raise ModelError(f"tap {block}: no such block in the target (expected 0 to {last})")

    def _export_output(self, block: int, on: bool) -> None:
        if block == self.layers - 1:
            llama_library.set_heads(self.handle, all_rows=True, on=on)
        else:
            llama_library.set_tap(self.handle, block + 1, on)

    def extend(self, ids: Sequence[int]) -> TargetFeatures | None:
        """See `Target`."""
        self._decode(ids, logits=False)
        self.keep(len(ids))
        self._cache.checkpoint(prompt_ended=False)
        return self._read_taps(len(ids))

    def verify(self, anchor: int, draft: Draft) -> Verification:
        """See `Target`."""
        rows = len(draft) + 1
        self._decode((anchor, *draft.tokens), logits=True)
        address = self._logits_address(self.handle)
        if not address:
            raise LocaldflashError("llama.cpp returned no logits")
        return Verification(self._view(address, rows, self.vocab_size), self._read_taps(rows))

    def keep(self, rows: int) -> None:
        """See `Target`."""
        self.crop(self.length + rows)

    def end_prompt(self) -> None:
        """See `Target`."""
        self._cache.checkpoint(prompt_ended=True)

    def crop(self, length: int) -> None:
        """See `Target`; recurrent layers may roll back further."""
        self.length = self._cache.crop(length)

    def assume_length(self, length: int) -> bool:
        """See `Target`."""
        return False

    def save(self) -> bytes:
        """See `Target`."""
        return self._cache.save()

    def load(self, state: bytes, length: int) -> None:
        """See `Target`."""
        self._cache.load(state, length)
        self.length = length

    def close(self) -> None:
        """Free the context and the model; the target cannot be used afterwards."""
        if self.handle:
            api.llama_batch_free(self._batch)
            api.llama_free(self.handle)
            api.llama_model_free(self.model)
            self.handle = self.model = None

    def _decode(self, ids: Sequence[int], logits: bool) -> None:
        # Filler rows get logits, too, so that the head's product is as wide as the batch.
        ids = (*ids, *(ids[-1],) * (self.mode.width_for(len(ids)) - len(ids)))
        batch, position = self._batch, self.length
        batch.n_tokens = len(ids)
        tokens, positions, outputs = batch.token, batch.pos, batch.logits
        for i, token in enumerate(ids):
            tokens[i] = token
            positions[i] = position + i
            outputs[i] = logits
        with self.watch:
            status = api.llama_decode(self.handle, batch)
        if status == 1:
            raise OutOfMemory(f"the context of {self.context} tokens is full")
        if status:
            raise LocaldflashError(f"llama.cpp failed to decode (status {status}): {llama_library.last_message()}")
        self._cache.record_decode(len(ids))

    def _read_taps(self, rows: int) -> TargetFeatures | None:
        if self._tap_address is None or self._last_address is None:
            return None
        taps = np.empty((rows, len(self.taps) * self.hidden_size), np.float32)
        for i, block in enumerate(self.taps):
            is_last = block == self.layers - 1
            address = self._last_address(self.handle) if is_last else self._tap_address(self.handle, block + 1)
            if not address:
                raise ModelError(f"llama.cpp exports no output of block {block} of this architecture; use no drafter")
            columns = slice(i * self.hidden_size, (i + 1) * self.hidden_size)
            taps[:, columns] = self._view(address, rows, self.hidden_size)
        return taps

    def _view(self, address: int, rows: int, columns: int) -> NDArray[np.float32]:
        """View the library's float32 rows at an address without a copy; views are cached, since buffers are few."""
        key = (address, rows, columns)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = llama_library.float_rows(address, rows, columns)
        return view
