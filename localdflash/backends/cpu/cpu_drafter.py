"""DFlash, DSpark and DFlash 2 drafters on the CPU engine: one pass a block (slots: kernels/cpu/slots.h).

Features wait until a draft is requested and are then injected in one go, earlier only if they would fill the memory. If
every layer has a window, features that no later block sees are dropped.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import bind_drafter, bind_layers, bind_matrix, check_shape, rope_tables
from localdflash.backends.cpu.cpu_kv_cache import KVCache
from localdflash.backends.cpu.cpu_library import MAX_ROWS, address, allocate_aligned
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.cpu.packed_file import PackedModel
from localdflash.backends.cpu.packing import GROUP, PANEL, Floats, select_rows
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from localdflash.engine.pair import TargetFeatures
from localdflash.models.shapes.dflash_config import DFlashConfig

WAITING_BYTES = 32 * 1024 * 1024
SPARE_FEATURES = 128  # features kept beyond a window
MAX_RANK = 4096  # of a Markov head or a selector
FLOAT_BYTES = 4  # bytes


class CpuDFlashDrafter:
    """See `Drafter`."""

    name = "dflash"
    is_model, is_autoregressive, unread_tokens = True, False, 0

    def __init__(self, packed: PackedModel[DFlashConfig], target: CpuTarget) -> None:
        self.config = packed.config
        if wrong := check_drafter(packed.config):
            raise ModelError(f"the CPU engine does not run drafters with {wrong}; use `--backend llama.cpp`")
        self.packed, self.target = packed, target
        self.max_draft_tokens = self.config.drafts
        self.length = 0
        c, blocks = self.config.decoder, self.config.decoder.num_hidden_layers
        self.cache = KVCache(blocks, c, target.context + self.config.block_size)
        sliding = [self.config.is_sliding(i) for i in range(blocks)]
        self._layers = bind_layers(
            packed.layers(),
            self.cache,
            [self.config.is_causal(i) for i in range(blocks)],
            [(self.config.window or 0) if slides else 0 for slides in sliding],
        )
        self._tokens = np.array(packed.config.short, np.int32)  # of the head's rows; empty: row by row
        rows = select_rows(target.packed.head, self._tokens) if len(self._tokens) else target.packed.head
        self.head = packed.parts.get("head") or rows
        self.model = self._bind()
        team = target.team
        self.workspace = allocate_aligned([team.library.workspace_bytes(self.model, team.threads)], np.uint8)
        self.model.workspace = address(self.workspace)
        team.keep(self.model, self._layers)
        self._ids = np.full(self.config.block_size, self.config.mask_token_id, np.int32)
        self._best = np.zeros(self.config.block_size, np.int32)
        self._confidence = np.zeros(self.config.block_size, np.float32)
        self._logits = np.empty(logit_bytes(self.config) // FLOAT_BYTES, np.float32)
        best, confidence = address(self._best), address(self._confidence)
        rows = self.config.block_size
        self._pass = cpu_library.PassStruct(address(self._ids), rows, best=best, confidence=confidence)
        self._pass.logits = address(self._logits) if len(self._logits) else None
        self._reach = count_kept_features(self.config)
        self._injected = 0
        self._waiting: list[Floats] = []

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes held in addition to weights and KV cache."""
        held = (*self.rope, self.workspace, self._ids, self._best, self._confidence, self._logits, *self._waiting)
        return sum(array.nbytes for array in held)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of its weights, those of a short head included."""
        head = self.head.nbytes if len(self._tokens) and "head" not in self.packed.parts else 0
        return self.packed.nbytes + head + self._tokens.nbytes

    def _bind(self) -> cpu_library.ModelStruct:
        parts, model = self.packed.parts, bind_drafter(self.config)
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

    def observe(self, ids: Sequence[int], taps: TargetFeatures | None) -> None:
        """See `Drafter`."""
        if taps is None:
            raise LocaldflashError("DFlash was given no hidden states: the target's taps are off")
        self._waiting.append(taps)
        self.length += len(ids)
        waiting = self.length - self._injected
        if self._reach and waiting > 2 * self._reach:
            self._skip()
        elif waiting * taps.shape[1] * taps.itemsize > WAITING_BYTES:
            self._inject()

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`; confidence is the best token's softmax probability, or a confidence head's output."""
        if limit < 1:
            return EMPTY_DRAFT
        self._inject()
        self._ids[0] = anchor
        self._pass.start = self.length
        team = self.target.team
        team.forward(ctypes.byref(self.model), ctypes.byref(self._pass), team.pool)
        slots = slice(self.config.first_slot, self.config.first_slot + limit)
        best = self._best[slots]
        tokens = self._tokens[best] if len(self._tokens) else best
        return Draft(self.name, tokens.tolist(), self._confidence[slots].tolist())

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        if length < self._injected:
            self._injected, self._waiting = length, []
        elif self._waiting:
            self._waiting = [np.concatenate(self._waiting)[: length - self._injected]]
        self.length = length

    def save(self) -> bytes:
        """See `Drafter`."""
        self._inject()
        return self.cache.save(self.length)

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self.cache.load(state, len(ids))
        self.length = self._injected = len(ids)
        self._waiting = []

    def _inject(self) -> None:
        if not self._waiting:
            return
        if self._reach:
            self._skip()
        features = np.ascontiguousarray(np.concatenate(self._waiting))
        self._waiting = []
        for begin in range(0, len(features), MAX_ROWS):
            chunk = features[begin : begin + MAX_ROWS]
            self.target.team.inject(self.model, chunk, self._injected)
            self._injected += len(chunk)

    def _skip(self) -> None:
        unseen = self.length - self._injected - self._reach
        if unseen > 0:
            self._waiting = [np.concatenate(self._waiting)[unseen:].copy()]
            self.cache.clear(self._injected, self._injected + unseen)
            self._injected += unseen


def count_kept_features(config: DFlashConfig) -> int:
    """Return how many features are kept: a window for the next block, and some more to roll back into; 0 for all."""
    slides = all(config.is_sliding(i) for i in range(config.decoder.num_hidden_layers))
    return (config.window or 0) + SPARE_FEATURES if slides else 0


def logit_bytes(config: DFlashConfig) -> int:
    """Return the bytes of the logits of a block, which are kept where a Markov head corrects them."""
    return FLOAT_BYTES * config.block_size * config.proposed if config.markov_rank else 0


def waiting_bytes(config: DFlashConfig, hidden: int, context: int) -> int:
    """Return the most that features take before they become keys, for a target of this hidden size."""
    row = len(config.taps) * hidden * np.dtype(np.float32).itemsize
    rows = min(WAITING_BYTES // row, context)
    return row * (min(rows, 2 * count_kept_features(config)) if count_kept_features(config) else rows)


def check_drafter(config: DFlashConfig) -> str:
    """Why the kernels cannot run a drafter, or ""."""
    c, rank = config, config.markov_rank or config.selector_rank
    if c.block_size > MAX_ROWS:
        return f"blocks of {c.block_size} tokens (it runs up to {MAX_ROWS})"
    if rank % GROUP or rank > MAX_RANK:
        return f"heads of rank {rank} (it runs multiples of {GROUP} up to {MAX_RANK})"
    if c.conv_group % PANEL:
        return f"convolutions of groups of {c.conv_group} channels (it runs multiples of {PANEL})"
    return check_shape(c.decoder)
