"""Batched decoding of many conversations on one thread of the CPU engine; dense Qwen3 and Llama decoders only.

All sequences share every matrix product; results are bit-identical to `CpuTarget`. With prompts of 100 and answers of
130 tokens (SmolLM2-135M, 32 sequences) this is 4 times as fast as `parallel_target`.
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
from localdflash.backends.cpu.binding import (
    bind_layers,
    bind_matrix,
    bind_shape,
    open_target,
    rope_tables,
    why_unsupported,
)
from localdflash.backends.cpu.cpu_kv_cache import STRIP_KEYS, VALUE_BITS
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP, PANEL
from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.lab.train.batched_answers import ParallelStep
from localdflash.lab.train.drafter_pass import TensorRows
from localdflash.lab.train.stored_answers import find_likeliest
from localdflash.models.weights import gguf

Floats = NDArray[np.float32]


class _SlotCache(NamedTuple):
    """KV cache of one slot, laid out like a `KVCache` in float16."""

    keys: NDArray[np.float16]  # [layers, kv_heads, capacity / 16, head_dim, 16]
    values: NDArray[np.float16]  # [layers, kv_heads, capacity, head_dim]

    def bind(self, layer: int) -> cpu_library.CacheStruct:
        """See `KVCache`."""
        keys, values = address(self.keys[layer]), address(self.values[layer])
        return cpu_library.CacheStruct(keys, values, value_bits=VALUE_BITS["f16"])


class _ActivationBuffers:
    """Buffers for the quantized activations of `rows` tokens, k numbers each."""

    def __init__(self, rows: int, k: int) -> None:
        self.codes, self.scales = allocate_aligned((rows, k), np.int8), allocate_aligned((rows, k // GROUP), np.float32)
        self.sums, self.totals = (
            allocate_aligned((rows, k // 16), np.int32),
            allocate_aligned((rows, k // GROUP), np.float32),
        )
        self.struct = cpu_library.RowsStruct(*map(address, (self.codes, self.scales, self.sums, self.totals)))
        self.at = ctypes.addressof(self.struct)


class ParallelCpuTarget:
    """`Parallel` on the CPU engine: slots of `context` tokens; `taps` are 0-based layers."""

    def __init__(self, path: Path, sequences: int, context: int, taps: Sequence[int]) -> None:
        packed = open_target(path)
        c = self.config = packed.config
        if c.num_experts or c.recurrent or why_unsupported(c):
            reason = why_unsupported(c) or ("mixtures of experts" if c.num_experts else "recurrent layers")
            raise ModelError(f"{path}: not supported by the CPU engine ({reason}); use --backend llama.cpp")
        self.sequences, self.context, self.taps = sequences, context, tuple(taps)
        self.hidden_size, self.vocab_size = c.hidden_size, c.vocab_size
        self.lengths = [0] * sequences  # tokens decoded in each slot
        width = len(taps) * c.hidden_size
        self._prefixes: list[tuple[list[int], Floats]] = [([], np.zeros((0, width), np.float32))] * sequences
        self._packed, self._layers, self._pool = packed, packed.layers(), ThreadPool(1)
        self._embedding = TensorRows(gguf.read_header(path), "token_embd.weight")
        self._bind_caches()
        self._bind_kernels()
        self._bind_buffers(sequences)

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
            cache.value_bits = VALUE_BITS["f16"]
        self._rope, self._tap_ids = rope_tables(c, self._capacity), np.array(self.taps, np.int32)
        self._models = [self._model_of(slot) for slot in range(slots)]
        need = self._pool.library.workspace_bytes(self._models[0], 1)
        self._workspace = allocate_aligned([need], np.uint8)
        for model in self._models:
            model.workspace = address(self._workspace)

    def _model_of(self, slot: int) -> cpu_library.ModelStruct:
        """Return a model struct over one slot's KV cache, for prefill."""
        c, packed = self.config, self._packed
        cache: Any = _SlotCache(self._keys[slot], self._values[slot])
        layers = bind_layers(self._layers, cache, [True] * c.num_hidden_layers, [0] * c.num_hidden_layers)
        model = bind_shape(c)
        model.capacity = self._capacity
        model.cosines, model.sines = map(address, self._rope)
        model.embedding, model.head = bind_matrix(packed.parts["embedding"]), bind_matrix(packed.head)
        model.norm = address(packed.parts["norm"])
        model.layers = layers
        model.taps, model.tap_count = address(self._tap_ids), len(self.taps)
        self._pool.keep_alive(model, layers)
        return model

    def _bind_kernels(self) -> None:
        """Bind kernels with plain addresses as arguments, which are faster: a step makes thousands of calls."""

        def plain(name: str, *arguments: Any) -> Callable[..., None]:
            at = ctypes.cast(getattr(self._pool.kernels, name), c_void_p).value
            assert at is not None
            return ctypes.CFUNCTYPE(None, *arguments)(at)

        at = c_void_p
        self._quantize = plain("quantize", at, c_int32, c_int32, at)
        self._product = plain("product", at, at, c_int32, c_int32, c_int32, at, c_ssize_t)
        self._attend = plain("attend", at, at, c_ssize_t, at, at, c_int32, c_int32, c_float, at, c_ssize_t)
        self._norm = plain("norm", at, at, c_float, c_int32, at)
        self._swiglu = plain("swiglu", at, at, c_int32, at)

    def _bind_buffers(self, rows: int) -> None:
        c = self.config
        across = c.num_attention_heads * c.head_dim
        narrow = c.num_key_value_heads * c.head_dim

        def buffer(columns: int) -> Floats:
            return allocate_aligned((rows, columns), np.float32)

        self._x, self._wide, self._added = buffer(c.hidden_size), buffer(c.hidden_size), buffer(c.hidden_size)
        self._q, self._k, self._v, self._heads = buffer(across), buffer(narrow), buffer(narrow), buffer(across)
        self._gate, self._up = buffer(c.intermediate_size), buffer(c.intermediate_size)
        self._logits = buffer(-(-c.vocab_size // PANEL) * PANEL)
        self._rows_of = {k: _ActivationBuffers(rows, k) for k in {c.hidden_size, across, c.intermediate_size}}
        self._matrices: dict[int, cpu_library.MatrixStruct] = {}
        self._begin, self._end = np.zeros(c.num_attention_heads, np.int32), np.zeros((rows, across), np.int32)

    def begin(self, slot: int, prompt: Sequence[int]) -> Floats:
        """See `Parallel`."""
        if not 1 < len(prompt) < self.context:
            raise LocaldflashError(f"prompt of {len(prompt)} tokens: does not fit into a slot of {self.context}")
        ids = list(prompt[:-1])
        cached = self._copy_nearest(slot, ids)
        taps = np.empty((len(ids), len(self.taps) * self.hidden_size), np.float32)
        taps[:cached] = self._prefixes[slot][1][:cached]
        for start in range(cached, len(ids), MAX_ROWS):
            chunk = np.array(ids[start : start + MAX_ROWS], np.int32)
            out = taps[start : start + len(chunk)]
            job = cpu_library.PassStruct(address(chunk), len(chunk), start, out.ctypes.data if self.taps else None)
            self._pool.forward(ctypes.byref(self._models[slot]), ctypes.byref(job), self._pool.handle)
        self._prefixes[slot] = (ids, taps)
        self.lengths[slot] = len(ids)
        return taps

    def _copy_nearest(self, slot: int, ids: list[int]) -> int:
        """Copy the longest cached prefix of a prompt from any slot to this one; return its length."""
        lengths = [count_common_prefix(cached, ids) for cached, _ in self._prefixes]
        nearest, count = max(
            enumerate(lengths), key=lambda slot_and_length: (slot_and_length[1], slot_and_length[0] == slot)
        )
        self._prefixes[slot] = ids[:count], self._prefixes[nearest][1][:count]
        if nearest != slot:
            strips = -(-count // STRIP_KEYS)
            self._keys[slot, :, :, :strips] = self._keys[nearest, :, :, :strips]
            self._values[slot, :, :, :count] = self._values[nearest, :, :, :count]
        return count

    def step(self, slots: Sequence[int], tokens: Sequence[int]) -> ParallelStep:
        """See `Parallel`."""
        c, count = self.config, len(slots)
        slot_ids = np.array(slots)
        positions = np.array([self.lengths[slot] for slot in slots])
        if positions.max() >= self.context:
            raise LocaldflashError(f"slot of {self.context} tokens: full")
        taps = np.empty((count, len(self.taps), self.hidden_size), np.float32)
        self._x[:count] = self._embedding[torch.tensor(tokens)].numpy()
        rope_rows = self._rope[0][positions, None], self._rope[1][positions, None]
        for index, layer in enumerate(self._layers):
            self._read_normed(layer["attention_norm"], count)
            self._multiply(layer["query"], self._q, count)
            self._multiply(layer["key"], self._k, count)
            self._multiply(layer["value"], self._v, count)
            self._attention(index, layer, slot_ids, positions, rope_rows)
            self._add(layer["output"], self._heads, count)
            self._read_normed(layer["mlp_norm"], count)
            self._multiply(layer["gate"], self._gate, count)
            self._multiply(layer["up"], self._up, count)
            inner = address(self._gate)
            self._swiglu(inner, address(self._up), count * c.intermediate_size, inner)
            self._add(layer["down"], self._gate, count)
            if index in self.taps:
                taps[:, self.taps.index(index)] = self._x[:count]
        self._read_normed(self._packed.parts["norm"], count)
        self._multiply(self._packed.head, self._logits, count)
        for slot in slots:
            self.lengths[slot] += 1
        logits = self._logits[:count, : self.vocab_size]
        return ParallelStep(taps.reshape(count, -1), logits.argmax(-1), find_likeliest(torch.from_numpy(logits)))

    def _read_normed(self, weight: Floats, count: int) -> None:
        """Normalise the residual stream with this weight and quantize it into the rows of its width."""
        size, at, x, out = self.hidden_size, address(weight), self._x.ctypes.data, self._wide.ctypes.data
        for row in range(0, 4 * size * count, 4 * size):
            self._norm(x + row, at, self.config.rms_norm_eps, size, out + row)
        self._quantize(out, count, size, self._rows_of[size].at)

    def _multiply(self, packed: Any, out: Floats, count: int) -> None:
        """Multiply a matrix with the newest quantized rows of its width into `out`."""
        matrix = self._matrices.setdefault(id(packed), bind_matrix(packed))
        panels = -(-matrix.n // PANEL)
        rows = self._rows_of[matrix.k].at
        self._product(ctypes.addressof(matrix), rows, count, 0, panels, out.ctypes.data, out.shape[1])

    def _add(self, packed: Any, x: Floats, count: int) -> None:
        """Add the product of a matrix and x to the residual stream."""
        self._quantize(x.ctypes.data, count, x.shape[1], self._rows_of[x.shape[1]].at)
        self._multiply(packed, self._added, count)
        self._x[:count] += self._added[:count]

    def _attention(
        self,
        index: int,
        layer: Any,
        slot_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        rope_rows: tuple[Any, Any],
    ) -> None:
        """Write the KV cache; compute the attention of each row over its slot's cache into `self._heads`."""
        c, count = self.config, len(slot_ids)
        size, kv_heads = c.head_dim, c.num_key_value_heads
        q = self._q[:count].reshape(count, -1, size)
        k, v = (x[:count].reshape(count, kv_heads, size) for x in (self._k, self._v))
        for x, weight in ((q, layer.get("query_norm")), (k, layer.get("key_norm"))):
            if weight is not None:
                self._norm_heads(x, weight)
            _rotate(x, *rope_rows)
        self._keys[slot_ids, index, :, positions // STRIP_KEYS, :, positions % STRIP_KEYS] = k.astype(np.float16)
        self._values[slot_ids, index, :, positions] = v.astype(np.float16)
        group = c.num_attention_heads // kv_heads
        end = self._end[:count, :group]
        end[:] = positions[:, None] + 1
        attend, begin, scale = self._attend, address(self._begin), size**-0.5
        caches, struct_size, layers = (
            ctypes.addressof(self._caches),
            ctypes.sizeof(cpu_library.CacheStruct),
            c.num_hidden_layers,
        )
        queries, out, ends = self._q.ctypes.data, self._heads.ctypes.data, self._end.ctypes.data
        head_stride, end_stride = 4 * group * size, self._end.strides[0]
        for row, slot in enumerate(slot_ids.tolist()):
            cache = caches + (slot * layers + index) * kv_heads * struct_size
            row_offset = row * kv_heads * head_stride
            for head in range(kv_heads):
                offset = row_offset + head * head_stride
                last = ends + row * end_stride
                of_head = cache + head * struct_size
                attend(of_head, queries + offset, size, begin, last, group, size, scale, out + offset, size)

    def _norm_heads(self, x: Floats, weight: Floats) -> None:
        size, at, first = self.config.head_dim, address(weight), x.ctypes.data
        for head in range(first, first + 4 * x.size, 4 * size):
            self._norm(head, at, self.config.rms_norm_eps, size, head)

    def close(self) -> None:
        """See `Parallel`."""
        self._pool.close()


def _rotate(x: Floats, cosines: Floats, sines: Floats) -> None:
    """Apply RoPE in place: x [rows, heads, head_dim], cosines and sines [rows, 1, head_dim / 2]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].copy(), x[..., half:].copy()
    x[..., :half] = first * cosines - second * sines
    x[..., half:] = second * cosines + first * sines
