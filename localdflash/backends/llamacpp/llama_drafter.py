"""DFlash, DSpark and DFlash 2 drafters through llama.cpp: a `dflash` GGUF, one decode per block.

The drafter shares the target's device, embedding and LM head (`ctx_other`); with a reduced vocabulary it has its own
head rows, and other logits are -inf. A row of extra outputs belongs to each slot (position of the block). With DSpark,
whose logits include the Markov head's bias, this row begins with the confidence. With DFlash 2, it holds k candidates,
and k scores for each candidate of the previous slot. Features are injected (decoded into the KV cache) on request.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.llamacpp import llama_library
from localdflash.backends.llamacpp.llama_kv_cache import SequenceCache, allow_second_sequence
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.files.regular import open_model
from localdflash.base.machine.cores import core_count
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.shapes.dflash_config import RETRAIN_VOCABULARY, SHORT_HEAD, DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_gguf
from localdflash.models.weights.gguf import GGUFHeader, read_header

INJECT_ROWS = 256  # features (one row per token) injected in a batch
WAITING_BYTES = 32 * 1024 * 1024  # features beyond this size are injected without waiting for a request


def check_drafter(config: DFlashConfig, path: Path) -> None:
    """Raise ModelError for a GGUF drafter that llama.cpp cannot run; safetensors drafters run in torch and pass."""
    if config.decoder.attention_bias and path.suffix == ".gguf":
        raise ModelError(f"{path}: llama.cpp runs no drafters with attention biases; use `--backend cpu`")


def check_short_head(header: GGUFHeader, config: DFlashConfig) -> None:
    """Raise ModelError if a GGUF's head of a reduced vocabulary is invalid; llama.cpp would end the process."""
    ids_name, rows_name = SHORT_HEAD
    if ids_name not in header.tensors:
        return
    info, rows = header.tensors[ids_name], header.tensors.get(rows_name)
    if info.ggml_type.name != "I64" or rows is None or rows.shape != (*info.shape, config.decoder.hidden_size):
        raise ModelError(f"{header.path}: {ids_name} and {rows_name} do not belong together; {RETRAIN_VOCABULARY}")
    with open_model(header.files[info.part]) as (stream, _):
        stream.seek(info.offset)
        ids = np.frombuffer(stream.read(info.nbytes), "<i8")
    if not np.array_equal(ids, config.short):
        raise ModelError(f"{header.path}: {ids_name} is not its short vocabulary; {RETRAIN_VOCABULARY}")


def context_params(config: DFlashConfig, target: Any, context: int, threads: int = 0) -> Any:
    """Return the parameters of a drafter's context for `context` tokens; `target` is the target's context handle."""
    params = api.llama_context_default_params()
    params.n_ctx = context + config.block_size
    params.n_batch = params.n_ubatch = max(INJECT_ROWS, config.block_size)
    allow_second_sequence(params)
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.no_perf, params.op_offload = True, False
    params.ctx_other = target
    params.type_k = params.type_v = api.GGML_TYPE_F32  # few layers: the memory is small, and no conversion
    params.n_threads = params.n_threads_batch = threads or core_count()
    return params


class LlamaCppDFlashDrafter:
    """See `Drafter`."""

    name = "dflash"
    is_model = True

    def __init__(self, path: Path, target: LlamaCppTarget, threads: int = 0) -> None:
        header = read_header(path)
        self.config = config_of_gguf(header)
        check_fit(self.config, target.hidden_size, target.vocab_size, target.layers, str(path))
        check_drafter(self.config, path)
        check_short_head(header, self.config)
        self.model = llama_library.load_model(path, placement=target.placement.all_layers())
        self.handle = llama_library.new_context(
            self.model, context_params(self.config, target.handle, target.context, threads)
        )
        if not self.handle:
            raise OutOfMemory(f"no memory for the drafter's context: {llama_library.last_message()}")
        # llama.cpp has one setting for all layers.
        layers = range(self.config.decoder.num_hidden_layers)
        api.llama_set_causal_attn(self.handle, all(map(self.config.is_causal, layers)))
        self._cache = SequenceCache(self.model, self.handle)
        self._batch = api.llama_batch_ext_init(self.handle)
        self._logits_address = llama_library.logits_reader()
        self._heads_address = llama_library.heads_reader()
        self._has_selector = self.config.kind == "dflash2"
        if self._has_selector or self.config.has_confidence_head:
            llama_library.set_heads(self.handle, all_rows=self._has_selector)
        self._vocab_size = target.vocab_size
        self._tokens = np.array(self.config.short, np.int32)  # ids of a reduced vocabulary; empty: all tokens
        self.max_draft_tokens = self.config.drafts
        self._watch = target.watch
        self.length = 0
        self._waiting: list[NDArray[np.float32]] = []

    def observe(self, ids: Sequence[int], features: TargetFeatures | None) -> None:
        """See `Drafter`."""
        if features is None:
            raise LocaldflashError("dflash: no hidden-state features; the target's taps are off")
        self._waiting.append(features)
        self.length += len(ids)
        if (self.length - self._cache.length) * features.shape[1] * features.itemsize > WAITING_BYTES:
            self._inject()

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the best token's softmax probability, or a confidence head's output."""
        if limit < 1:
            return EMPTY_DRAFT
        self._decode_block(anchor)
        draft = self._draft_by_selector(limit) if self._has_selector else self._draft_likeliest(limit)
        self._cache.crop(self.length)
        return draft

    def _decode_block(self, anchor: int) -> None:
        slots = self.config.block_size
        self._inject()
        api.llama_batch_ext_clear(self._batch)
        for slot in range(slots):
            token = self.config.mask_token_id if slot else anchor
            llama_library.add_to_batch(self._batch, token, self.length + slot, output=not self._has_selector)
        self._decode(slots)

    def _draft_likeliest(self, limit: int) -> Draft:
        logits = self._rows(self._logits_address, self._vocab_size)[:limit]
        if len(self._tokens):
            logits = logits[:, self._tokens]
        best = logits.argmax(1)
        if self.config.has_confidence_head:
            confidence = self._rows(self._heads_address, self.config.decoder.hidden_size)[:limit, 0]
        else:
            scaled = logits * np.float32(self.config.logit_scale)  # llama.cpp's graph applies neither scale nor cap
            if self.config.softcap:
                scaled = np.tanh(scaled / self.config.softcap) * self.config.softcap
            confidence = 1.0 / np.exp(scaled - scaled[np.arange(len(best)), best][:, None]).sum(1)
        tokens = self._tokens[best] if len(self._tokens) else best
        return Draft(self.name, tokens.tolist(), confidence.tolist())

    def _draft_by_selector(self, limit: int) -> Draft:
        """Draft the best candidate of each of the first `limit` slots, given the choice for the previous slot."""
        count, previous = self.config.selector_top_k, 0
        tokens, confidence = list[int](), list[float]()
        for row in self._rows(self._heads_address, self.config.decoder.hidden_size)[:limit]:
            scores = row[count:][previous * count :][:count]
            previous = int(scores.argmax())
            confidence.append(float(1.0 / np.exp(scores - scores[previous]).sum()))
            tokens.append(int(row[previous]))
        return Draft(self.name, tokens, confidence)

    def _rows(self, reader: Callable[[Any], int | None], columns: int) -> NDArray[np.float32]:
        """Return the outputs of the proposing slots from the last decode; valid until the next decode."""
        address = reader(self.handle)
        if not address:
            raise LocaldflashError("llama.cpp returned nothing for a draft")
        return llama_library.float_rows(address, self.config.block_size, columns)[self.config.first_slot :]

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        if length < self._cache.length:
            self._cache.crop(length)
            self._waiting = []
        elif self._waiting:
            self._waiting = [np.concatenate(self._waiting)[: length - self._cache.length]]
        self.length = length

    def save(self) -> bytes:
        """See `Drafter`."""
        self._inject()
        return self._cache.save()

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self._cache.load(state, len(ids))
        self.length, self._waiting = len(ids), []

    def close(self) -> None:
        """Free the context and the model; call it before the target's `close`."""
        if self.handle:
            api.llama_batch_ext_free(self._batch)
            api.llama_free(self.handle)
            api.llama_model_free(self.model)
            self.handle = self.model = None

    def _inject(self) -> None:
        if not self._waiting:
            return
        features = np.ascontiguousarray(np.concatenate(self._waiting))
        self._waiting = []
        for begin in range(0, len(features), INJECT_ROWS):
            chunk = features[begin : begin + INJECT_ROWS]
            api.llama_batch_ext_clear(self._batch)
            for index, row in enumerate(chunk):
                llama_library.add_to_batch(self._batch, row, self._cache.length + index)
            self._decode(len(chunk))

    def _decode(self, rows: int) -> None:
        llama_library.run_batch(self.handle, self._batch, self._watch)
        self._cache.record_decode(rows)
