"""DFlash, DSpark and DFlash 2 drafters on the CPU engine: one forward pass drafts a block of tokens (slots).

The target's features are injected (written to the drafter's KV cache) when a draft is requested, or earlier if they
exceed `WAITING_BYTES`. If every layer has a window, features that no later block attends to are dropped.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import bind_drafter_shape, bind_layers, bind_matrix, rope_tables, why_unsupported
from localdflash.backends.cpu.cpu_kv_cache import KVCache
from localdflash.backends.cpu.cpu_library import MAX_ROWS, address, allocate_aligned
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.cpu.packed_file import PackedModel
from localdflash.backends.cpu.packing import GROUP, PANEL, Floats, select_rows
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.shapes.dflash_config import DFlashConfig

WAITING_BYTES = 32 * 1024 * 1024  # maximum size of the features that wait for injection
SPARE_FEATURES = 128  # features kept beyond the window, so that up to 128 tokens can be rolled back
MAX_RANK = 4096  # maximum rank of a Markov head or a selector
FLOAT_BYTES = 4


class CpuDFlashDrafter:
    """See `Drafter`."""

    name = "dflash"
    is_model = True

    def __init__(self, packed: PackedModel[DFlashConfig], target: CpuTarget) -> None:
        self.config = packed.config
        if problem := why_drafter_unsupported(packed.config):
            raise ModelError(f"the CPU engine does not run drafters with {problem}; use `--backend llama.cpp`")
        self.packed, self.target = packed, target
        self.max_draft_tokens = self.config.drafts
        self.length = 0
        c, layers = self.config.decoder, self.config.decoder.num_hidden_layers
        self.cache = KVCache(layers, c, target.context + self.config.block_size)
        sliding = [self.config.is_sliding(i) for i in range(layers)]
        self._layers = bind_layers(
            packed.layers(),
            self.cache,
            [self.config.is_causal(i) for i in range(layers)],
            [(self.config.window or 0) if slides else 0 for slides in sliding],
        )
        self._tokens = np.array(packed.config.short, np.int32)  # token ids of the LM head's rows; empty: all tokens
        head = select_rows(target.packed.head, self._tokens) if len(self._tokens) else target.packed.head
        self.head = packed.parts.get("head") or head
        self.model = self._bind()
        pool = target.pool
        self.workspace = allocate_aligned([pool.library.workspace_bytes(self.model, pool.threads)], np.uint8)
        self.model.workspace = address(self.workspace)
        pool.keep_alive(self.model, self._layers)
        self._ids = np.full(self.config.block_size, self.config.mask_token_id, np.int32)
        self._best = np.zeros(self.config.block_size, np.int32)
        self._confidence = np.zeros(self.config.block_size, np.float32)
        self._logits = np.empty(logit_bytes(self.config) // FLOAT_BYTES, np.float32)
        best, confidence = address(self._best), address(self._confidence)
        self._pass = cpu_library.PassStruct(address(self._ids), len(self._ids), best=best, confidence=confidence)
        self._pass.logits = address(self._logits) if len(self._logits) else None
        self._kept_features = count_kept_features(self.config)
        self._injected = 0  # tokens whose features were injected
        self._uninjected: list[Floats] = []  # features of the tokens after the injected ones

    @property
    def scratch_bytes(self) -> int:
        """Size in bytes of all memory except weights and KV cache."""
        arrays = (*self.rope, self.workspace, self._ids, self._best, self._confidence, self._logits, *self._uninjected)
        return sum(array.nbytes for array in arrays)

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in bytes, including a head copied from the target for a short vocabulary."""
        head = self.head.nbytes if len(self._tokens) and "head" not in self.packed.parts else 0
        return self.packed.nbytes + head + self._tokens.nbytes

    def _bind(self) -> cpu_library.ModelStruct:
        parts, model = self.packed.parts, bind_drafter_shape(self.config)
        model.capacity = self.cache.capacity
        self.rope = rope_tables(self.config.decoder, self.cache.capacity)
        model.cosines, model.sines = map(address, self.rope)
        model.embedding = bind_matrix(parts["embedding"]) if "embedding" in parts else self.target.model.embedding
        model.head = bind_matrix(self.head)
        model.vocabulary = self.head.n
        model.norm, model.layers = address(parts["norm"]), self._layers
        model.fuse, model.fuse_norm = bind_matrix(parts["fuse"]), address(parts["fuse_norm"])
        for name in ("markov_w1", "markov_w2", "predecessor", "successor", "selector"):
            setattr(model.slots, name, bind_matrix(parts.get(name)))
        model.slots.confidence = address(parts.get("confidence"))
        model.slots.confidence_bias = float(parts.get("confidence_bias", [0.0])[0])
        model.slots.tokens = address(self._tokens) if len(self._tokens) else None
        return model

    def observe(self, ids: Sequence[int], features: TargetFeatures | None) -> None:
        """See `Drafter`."""
        if features is None:
            raise LocaldflashError("dflash: no hidden-state features; the target's taps are off")
        self._uninjected.append(features)
        self.length += len(ids)
        waiting = self.length - self._injected
        if self._kept_features and waiting > 2 * self._kept_features:
            self._drop_unattended()
        elif waiting * features.shape[1] * features.itemsize > WAITING_BYTES:
            self._inject()

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the token's softmax probability, or the output of a confidence head."""
        if limit < 1:
            return EMPTY_DRAFT
        self._inject()
        self._ids[0] = anchor
        self._pass.start = self.length
        pool = self.target.pool
        pool.forward(ctypes.byref(self.model), ctypes.byref(self._pass), pool.handle)
        slots = slice(self.config.first_slot, self.config.first_slot + limit)
        best = self._best[slots]
        tokens = self._tokens[best] if len(self._tokens) else best
        return Draft(self.name, tokens.tolist(), self._confidence[slots].tolist())

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        if length < self._injected:
            self._injected, self._uninjected = length, []
        elif self._uninjected:
            self._uninjected = [np.concatenate(self._uninjected)[: length - self._injected]]
        self.length = length

    def save(self) -> bytes:
        """See `Drafter`."""
        self._inject()
        return self.cache.save(self.length)

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self.cache.load(state, len(ids))
        self.length = self._injected = len(ids)
        self._uninjected = []

    def _inject(self) -> None:
        if not self._uninjected:
            return
        if self._kept_features:
            self._drop_unattended()
        features = np.ascontiguousarray(np.concatenate(self._uninjected))
        self._uninjected = []
        for begin in range(0, len(features), MAX_ROWS):
            chunk = features[begin : begin + MAX_ROWS]
            self.target.pool.inject(self.model, chunk, self._injected)
            self._injected += len(chunk)

    def _drop_unattended(self) -> None:
        count = self.length - self._injected - self._kept_features
        if count > 0:
            self._uninjected = [np.concatenate(self._uninjected)[count:].copy()]
            self.cache.clear(self._injected, self._injected + count)
            self._injected += count


def count_kept_features(config: DFlashConfig) -> int:
    """Return how many of the newest features are kept: the window and `SPARE_FEATURES`; 0: all."""
    slides = all(config.is_sliding(i) for i in range(config.decoder.num_hidden_layers))
    return (config.window or 0) + SPARE_FEATURES if slides else 0


def logit_bytes(config: DFlashConfig) -> int:
    """Return the size in bytes of a block's logits; 0 without a Markov head, because only that head reads logits."""
    return FLOAT_BYTES * config.block_size * config.draft_vocab_size if config.markov_rank else 0


def waiting_bytes(config: DFlashConfig, hidden: int, context: int) -> int:
    """Return the maximum size in bytes of the features that wait for injection, from a target of width `hidden`."""
    size, kept = len(config.taps) * hidden * FLOAT_BYTES, count_kept_features(config)
    count = min(WAITING_BYTES // size, context)
    return size * (min(count, 2 * kept) if kept else count)


def why_drafter_unsupported(config: DFlashConfig) -> str:
    """Return the reason why the kernels cannot run a drafter, or "" if they can."""
    c, rank = config, config.markov_rank or config.selector_rank
    if c.block_size > MAX_ROWS:
        return f"blocks of {c.block_size} tokens (supported: up to {MAX_ROWS})"
    if rank % GROUP or rank > MAX_RANK:
        return f"heads of rank {rank} (supported: multiples of {GROUP} up to {MAX_RANK})"
    if c.conv_group % PANEL:
        return f"convolutions of groups of {c.conv_group} channels (supported: multiples of {PANEL})"
    return why_unsupported(c.decoder)
