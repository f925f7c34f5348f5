"""Many conversations with one GGUF model on the CPU engine, one thread: dense Qwen3 and Llama decoders.

Rows of all sequences share every matrix product; each has the bits that `CpuTarget` gives it. With prompts of 100 and
answers of 130 tokens (SmolLM2-135M, 32 sequences) 4 times as many answers as `parallel_target`.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int32, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import bind_layers, bind_matrix, bind_model, check_shape, open_target, rope_tables
from localdflash.backends.cpu.cpu_kv_cache import STRIP_KEYS
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP, PANEL
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.lab.train.kept_answers import likely
from localdflash.lab.train.kept_drafter import TensorRows
from localdflash.lab.train.parallel_target import ParallelStep
from localdflash.models.weights import gguf

Floats = NDArray[np.float32]


class _SlotCache(NamedTuple):
    """KV cache of one slot, in the form "f16" of `KVCache`."""

    keys: NDArray[np.float16]  # [blocks, kv_heads, capacity / 16, head_dim, 16]
    values: NDArray[np.float16]  # [blocks, kv_heads, capacity, head_dim]

    def bound(self, block: int) -> cpu_library.CacheStruct:
        """See `KeysAndValues`."""
        return cpu_library.CacheStruct(address(self.keys[block]), address(self.values[block]))


class _ActivationBuffers:
    """Room for the quantized activations of `rows` rows of k numbers."""

    def __init__(self, rows: int, k: int) -> None:
        self.codes, self.scales = allocate_aligned((rows, k), np.int8), allocate_aligned((rows, k // GROUP), np.float32)
        self.sums, self.totals = (
            allocate_aligned((rows, k // 16), np.int32),
            allocate_aligned((rows, k // GROUP), np.float32),
        )
        self.struct = cpu_library.RowsStruct(*map(address, (self.codes, self.scales, self.sums, self.totals)))
        self.at = ctypes.addressof(self.struct)


class ParallelCpuTarget:
    """See `ParallelTarget`."""

    def __init__(self, path: Path, sequences: int, context: int, taps: Sequence[int]) -> None:
        packed = open_target(path)
        c = self.config = packed.config
        if c.num_experts or c.recurrent or check_shape(c):
            wrong = check_shape(c) or ("mixtures of experts" if c.num_experts else "recurrent layers")
            raise ModelError(f"{path}: {wrong}: answer with llama.cpp")
        self.sequences, self.context, self.taps = sequences, context, tuple(taps)
        self.hidden_size, self.vocab_size = c.hidden_size, c.vocab_size
        self.lengths = [0] * sequences  # of what each slot has decoded
        width = len(taps) * c.hidden_size
        self._known: list[tuple[list[int], Floats]] = [([], np.zeros((0, width), np.float32))] * sequences
        self._packed, self._layers, self._team = packed, packed.layers(), ThreadPool(1)
        self._embedding = TensorRows(gguf.read_header(path), "token_embd.weight")
        self._bind_caches()
        self._bind_kernels()
        self._bind_room(sequences)

    def _bind_caches(self) -> None:
        c, slots = self.config, self.sequences
        self._capacity = -(-self.context // STRIP_KEYS) * STRIP_KEYS
        layers, heads, size = c.num_hidden_layers, c.num_key_value_heads, c.head_dim
        self._keys = allocate_aligned(
            (slots, layers, heads, self._capacity // STRIP_KEYS, size, STRIP_KEYS), np.float16
        )
        self._values = allocate_aligned((slots, layers, heads, self._capacity, size), np.float16)
        self._caches = (cpu_library.CacheStruct * (slots * layers * heads))()
        bytes_of_one = 2 * self._capacity * size
        keys, values = self._keys.ctypes.data, self._values.ctypes.data
        for i, cache in enumerate(self._caches):
            cache.keys, cache.values = keys + i * bytes_of_one, values + i * bytes_of_one
        self._rope, self._tap_ids = rope_tables(c, self._capacity), np.array(self.taps, np.int32)
        self._models = [self._model_of(slot) for slot in range(slots)]
        need = self._team.library.workspace_bytes(self._models[0], 1)
        self._workspace = allocate_aligned([need], np.uint8)
        for model in self._models:
            model.workspace = address(self._workspace)

    def _model_of(self, slot: int) -> cpu_library.ModelStruct:
        """The whole model over one slot's cache: it reads prompts."""
        c, packed = self.config, self._packed
        cache: Any = _SlotCache(self._keys[slot], self._values[slot])
        layers = bind_layers(self._layers, cache, [True] * c.num_hidden_layers, [0] * c.num_hidden_layers)
        model = bind_model(c, c.num_hidden_layers)
        model.capacity = self._capacity
        model.cosines, model.sines = map(address, self._rope)
        model.embedding, model.head = bind_matrix(packed.parts["embedding"]), bind_matrix(packed.head)
        model.norm = address(packed.parts["norm"])
        model.layers = layers
        model.taps, model.tap_count = address(self._tap_ids), len(self.taps)
        self._team.keep(model, layers)
        return model

    def _bind_kernels(self) -> None:
        """Kernels with plain addresses for arguments: a call is made thousands of times a step."""

        def plain(name: str, *arguments: Any) -> Callable[..., None]:
            at = ctypes.cast(getattr(self._team.kernels, name), c_void_p).value
            assert at is not None
            return ctypes.CFUNCTYPE(None, *arguments)(at)

        at = c_void_p
        self._quantize = plain("quantize", at, c_int32, c_int32, at)
        self._product = plain("product", at, at, c_int32, c_int32, c_int32, at, c_ssize_t)
        self._attend = plain("attend", at, at, c_ssize_t, at, at, c_int32, c_int32, c_float, at, c_ssize_t)
        self._norm = plain("norm", at, at, c_float, c_int32, at)
        self._swiglu = plain("swiglu", at, at, c_int32, at)

    def _bind_room(self, rows: int) -> None:
        c = self.config
        across = c.num_attention_heads * c.head_dim
        narrow = c.num_key_value_heads * c.head_dim

        def room(columns: int) -> Floats:
            return allocate_aligned((rows, columns), np.float32)

        self._x, self._wide, self._added = room(c.hidden_size), room(c.hidden_size), room(c.hidden_size)
        self._q, self._k, self._v, self._heads = room(across), room(narrow), room(narrow), room(across)
        self._gate, self._up = room(c.intermediate_size), room(c.intermediate_size)
        self._logits = room(-(-c.vocab_size // PANEL) * PANEL)
        self._rows_of = {k: _ActivationBuffers(rows, k) for k in {c.hidden_size, across, c.intermediate_size}}
        self._matrices: dict[int, cpu_library.MatrixStruct] = {}
        self._begin, self._end = np.zeros(c.num_attention_heads, np.int32), np.zeros((rows, across), np.int32)

    def begin(self, slot: int, prompt: Sequence[int]) -> Floats:
        """Put a prompt into a slot; its last token is left for `step`. Taps [T - 1, taps * H] of the others."""
        if not 1 < len(prompt) < self.context:
            raise LocaldflashError(f"a prompt of {len(prompt)} tokens does not fit into a slot of {self.context}")
        ids = list(prompt[:-1])
        same = self._copy_nearest(slot, ids)
        taps = np.empty((len(ids), len(self.taps) * self.hidden_size), np.float32)
        taps[:same] = self._known[slot][1][:same]
        for start in range(same, len(ids), MAX_ROWS):
            chunk = np.array(ids[start : start + MAX_ROWS], np.int32)
            out = taps[start : start + len(chunk)]
            job = cpu_library.PassStruct(address(chunk), len(chunk), start, out.ctypes.data if self.taps else None)
            self._team.forward(ctypes.byref(self._models[slot]), ctypes.byref(job), self._team.pool)
        self._known[slot] = (ids, taps)
        self.lengths[slot] = len(ids)
        return taps

    def _copy_nearest(self, slot: int, ids: list[int]) -> int:
        """Copy the longest known beginning of a prompt from any slot; return its length."""
        shared = [count_common_prefix(known, ids) for known, _ in self._known]
        nearest, same = max(enumerate(shared), key=lambda found: (found[1], found[0] == slot))
        self._known[slot] = ids[:same], self._known[nearest][1][:same]
        if nearest != slot:
            panels = -(-same // STRIP_KEYS)
            self._keys[slot, :, :, :panels] = self._keys[nearest, :, :, :panels]
            self._values[slot, :, :, :same] = self._values[nearest, :, :, :same]
        return same

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> ParallelStep:
        """One token more in each of these slots."""
        c, count = self.config, len(slots)
        where = np.array(slots)
        positions = np.array([self.lengths[slot] for slot in slots])
        if positions.max() >= self.context:
            raise LocaldflashError(f"a slot of {self.context} tokens is full")
        taps = np.empty((count, len(self.taps), self.hidden_size), np.float32)
        self._x[:count] = self._embedding[torch.tensor(tokens)].numpy()
        turn = self._rope[0][positions, None], self._rope[1][positions, None]
        for block, layer in enumerate(self._layers):
            self._read_normed(layer["attention_norm"], count)
            self._multiply(layer["query"], self._q, count)
            self._multiply(layer["key"], self._k, count)
            self._multiply(layer["value"], self._v, count)
            self._attention(block, layer, where, positions, turn)
            self._add(layer["output"], self._heads, count)
            self._read_normed(layer["mlp_norm"], count)
            self._multiply(layer["gate"], self._gate, count)
            self._multiply(layer["up"], self._up, count)
            inner = address(self._gate)
            self._swiglu(inner, address(self._up), count * c.intermediate_size, inner)
            self._add(layer["down"], self._gate, count)
            if block in self.taps:
                taps[:, self.taps.index(block)] = self._x[:count]
        self._read_normed(self._packed.parts["norm"], count)
        self._multiply(self._packed.head, self._logits, count)
        for slot in slots:
            self.lengths[slot] += 1
        logits = self._logits[:count, : self.vocab_size]
        return ParallelStep(taps.reshape(count, -1), logits.argmax(-1), likely(logits))

    def _read_normed(self, weight: Floats, count: int) -> None:
        """The residual stream, normed and quantized."""
        size, at, x, out = self.hidden_size, address(weight), self._x.ctypes.data, self._wide.ctypes.data
        for row in range(0, 4 * size * count, 4 * size):
            self._norm(x + row, at, self.config.rms_norm_eps, size, out + row)
        self._quantize(out, count, size, self._rows_of[size].at)

    def _multiply(self, packed: Any, out: Floats, count: int) -> None:
        """Matrix times the rows that were quantized last, of its width."""
        matrix = self._matrices.setdefault(id(packed), bind_matrix(packed))
        panels = -(-matrix.n // PANEL)
        rows = self._rows_of[matrix.k].at
        self._product(ctypes.addressof(matrix), rows, count, 0, panels, out.ctypes.data, out.shape[1])

    def _add(self, packed: Any, x: Floats, count: int) -> None:
        """Matrix times x, added to the residual stream."""
        self._quantize(x.ctypes.data, count, x.shape[1], self._rows_of[x.shape[1]].at)
        self._multiply(packed, self._added, count)
        self._x[:count] += self._added[:count]

    def _attention(
        self, block: int, layer: Any, where: NDArray[np.int64], positions: NDArray[np.int64], turn: tuple[Any, Any]
    ) -> None:
        """Keys and values into the caches, then each row's heads over its own cache, into `self._heads`."""
        c, count = self.config, len(where)
        size, kv_heads = c.head_dim, c.num_key_value_heads
        q = self._q[:count].reshape(count, -1, size)
        k, v = (x[:count].reshape(count, kv_heads, size) for x in (self._k, self._v))
        for x, weight in ((q, layer.get("query_norm")), (k, layer.get("key_norm"))):
            if weight is not None:
                self._norm_heads(x, weight)
            _rotate(x, *turn)
        self._keys[where, block, :, positions // STRIP_KEYS, :, positions % STRIP_KEYS] = k.astype(np.float16)
        self._values[where, block, :, positions] = v.astype(np.float16)
        group = c.num_attention_heads // kv_heads
        end = self._end[:count, :group]
        end[:] = positions[:, None] + 1
        attend, begin, scale = self._attend, address(self._begin), size**-0.5
        caches, one, layers = (
            ctypes.addressof(self._caches),
            ctypes.sizeof(cpu_library.CacheStruct),
            c.num_hidden_layers,
        )
        queries, out, ends = self._q.ctypes.data, self._heads.ctypes.data, self._end.ctypes.data
        wide, end_wide = 4 * group * size, self._end.strides[0]
        for row, slot in enumerate(where.tolist()):
            cache = caches + (slot * layers + block) * kv_heads * one
            at = row * kv_heads * wide
            for head in range(kv_heads):
                here = at + head * wide
                last = ends + row * end_wide
                attend(cache + head * one, queries + here, size, begin, last, group, size, scale, out + here, size)

    def _norm_heads(self, x: Floats, weight: Floats) -> None:
        size, at, first = self.config.head_dim, address(weight), x.ctypes.data
        for head in range(first, first + 4 * x.size, 4 * size):
            self._norm(head, at, self.config.rms_norm_eps, size, head)

    def close(self) -> None:
        """End the engine's threads; the target cannot be used afterwards."""
        self._team.close()


def _rotate(x: Floats, cosines: Floats, sines: Floats) -> None:
    """RoPE in place: x [rows, heads, head_dim], cosines and sines [rows, 1, head_dim / 2]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].copy(), x[..., half:].copy()
    x[..., :half] = first * cosines - second * sines
    x[..., half:] = second * cosines + first * sines
