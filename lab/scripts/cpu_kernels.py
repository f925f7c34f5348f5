"""Kernels of the CPU engine relative to the machine's integer peak and memory bandwidth, both measured.

`PYTHONPATH=. python -P lab/scripts/cpu_kernels.py --json FILE --threads 2`, for every
instruction set of this processor. Matrices are stacked until no cache holds them, so that a call's own cost is not in
the numbers. The fastest of interleaved rounds counts.
"""

import argparse
import ctypes
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_kv_cache import CPU_KV_FORMATS, KVCache, cache_bytes
from localdflash.backends.cpu.cpu_library import address, allocate_aligned
from localdflash.backends.cpu.packing import GROUP, PANEL, Kind, MatrixShape
from localdflash.base.machine.cores import physical_cores
from localdflash.base.machine.hardware import bandwidth
from localdflash.lab import result_file
from localdflash.lab.scripts import synthetic
from localdflash.lab.scripts.cpu_context import fill
from localdflash.models.shapes.decoder_config import DecoderConfig

WIDTHS = (1, 2, 4, 8, 16, 32)
CONTEXTS = (256, 1024, 4096, 8192)
EMBEDDED = DecoderConfig(6144, 256, 6, 4, 2, 64, 768)
MODELS = {"embedded": EMBEDDED} | synthetic.SHAPES
COLD_BYTES = 160 << 20  # more than caches hold
ROUNDS = 5
MIN_SECONDS = 2e-3  # duration of a timing; faster work is repeated
MACS_OF_GROUP = GROUP * PANEL


@dataclass(frozen=True)
class StackedShape:
    """Matrix [n, k]; `copies` of it are stacked into one."""

    model: str
    name: str
    n: int
    k: int
    layers: int

    def copies(self, kind: Kind) -> int:
        """Return the number of copies: one per layer for the embedded pair, else more than the CPU's caches hold."""
        if self.model == "embedded":
            return self.layers
        return -(-COLD_BYTES // weight_bytes(MatrixShape(kind, self.n, self.k)))


def shapes(model: str, config: DecoderConfig) -> Iterator[StackedShape]:
    """Yield the matrices of a transformer layer; for the embedded pair also the LM head, a large part of its target."""
    c = config
    yield StackedShape(model, "query", c.num_attention_heads * c.head_dim, c.hidden_size, c.num_hidden_layers)
    yield StackedShape(model, "key", c.num_key_value_heads * c.head_dim, c.hidden_size, c.num_hidden_layers)
    yield StackedShape(model, "gate", c.intermediate_size, c.hidden_size, c.num_hidden_layers)
    yield StackedShape(model, "down", c.hidden_size, c.intermediate_size, c.num_hidden_layers)
    if model == "embedded":
        yield StackedShape(model, "head", c.vocab_size, c.hidden_size, 1)


class CoreThreads:
    """Thread pool with one thread per core; all threads run the same work at the same time."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._together = threading.Barrier(threads)
        self._pool = ThreadPoolExecutor(threads)
        self._cores = physical_cores()

    def measure_seconds(self, work: Callable[[int], None]) -> float:
        """Return the processor time of one `work(thread)` in the slowest thread; short work is repeated."""
        repeats = max(round(MIN_SECONDS / max(self._run(work, 1), 1e-6)), 1)
        return self._run(work, repeats)

    def _run(self, work: Callable[[int], None], repeats: int) -> float:
        return max(self._pool.map(lambda thread: self._one(work, thread, repeats), range(self.threads))) / repeats

    def _one(self, work: Callable[[int], None], thread: int, repeats: int) -> float:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self._cores[thread % len(self._cores)]})
        self._together.wait()
        began = time.thread_time()
        for _ in range(repeats):
            work(thread)
        return time.thread_time() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def fastest(pool: CoreThreads, works: dict[int, Callable[[int], None]], rounds: int) -> dict[int, float]:
    """Return the seconds of each work, interleaved; the fastest round counts."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for width, work in works.items():
            best[width] = min(best[width], pool.measure_seconds(work))
    return best


def random_bytes(shape: Sequence[int], below: int = 256) -> NDArray[np.uint8]:
    """Return random bytes that repeat after a mebibyte."""
    pool = np.random.default_rng(0).integers(0, below, 1 << 20, dtype=np.uint8)
    out = allocate_aligned(shape, np.uint8)
    flat = out.reshape(-1)
    for start in range(0, flat.size, pool.size):
        flat[start : start + pool.size] = pool[: flat.size - start]
    return out


def random_array(dtype: Any, shape: Sequence[int], below: int) -> NDArray[Any]:
    """Return random codes below a number, or scales of about 0.001."""
    if np.dtype(dtype) != np.float16:
        return random_bytes(shape, below).view(dtype)
    out = allocate_aligned(shape, np.float16)
    out[...] = np.float16(0.001)
    return out


def weight_bytes(shape: MatrixShape) -> int:
    """Return the bytes of a packed matrix."""
    return sum(int(np.prod(array.shape)) * np.dtype(array.dtype).itemsize for array in shape.arrays)


class Product:
    """Stack of matrices with activation rows."""

    def __init__(self, kernels: Any, shape: StackedShape, kind: Kind) -> None:
        self.kernels = kernels
        self.copies = shape.copies(kind)
        stacked = MatrixShape(kind, shape.n * self.copies, shape.k)
        limits = (64 if kind == Kind.Q6_K else 256, 64, 256)
        self.arrays = [random_array(a.dtype, a.shape, limits[i]) for i, a in enumerate(stacked.arrays)]
        if kind == Kind.MXFP4:
            self.arrays[1] |= 64  # exponents as models have them: subnormal floats are slow on some processors
        self.bytes = weight_bytes(stacked)
        self.macs = stacked.n * stacked.k
        places = [address(array) for array in (*self.arrays, None)][:3]
        self.matrix = cpu_library.MatrixStruct(kind, stacked.n, stacked.k, *places)
        self.panels = stacked.n // PANEL
        most = max(WIDTHS)
        x = np.random.default_rng(1).standard_normal((most, shape.k)).astype(np.float32)
        self.codes = allocate_aligned((most, shape.k), np.int8)
        self.scales = allocate_aligned((most, shape.k // GROUP), np.float32)
        self.sums = allocate_aligned((most, shape.k // 16), np.int32)
        self.totals = allocate_aligned((most, shape.k // GROUP), np.float32)
        arrays = (self.codes, self.scales, self.sums, self.totals)
        self.rows = cpu_library.RowsStruct(*map(address, arrays))
        kernels.quantize(address(x), most, shape.k, ctypes.byref(self.rows))
        self.out = allocate_aligned((most, stacked.n), np.float32)

    def work(self, rows: int, threads: int) -> Callable[[int], None]:
        """Return the work of a thread: the product of `rows` rows with its share of the panels."""
        cuts = [self.panels * i // threads for i in range(threads + 1)]
        matrix, x, stride = ctypes.byref(self.matrix), ctypes.byref(self.rows), self.out.shape[1]
        starts = [self.out[:, PANEL * cut :].ctypes.data for cut in cuts]

        def multiply(thread: int) -> None:
            self.kernels.product(matrix, x, rows, cuts[thread], cuts[thread + 1], starts[thread], stride)

        return multiply


class TimedAttention:
    """KV cache of all layers, filled to a context, with query rows."""

    def __init__(self, kernels: Any, config: DecoderConfig, context: int, kv: str) -> None:
        c = self.config = config
        self.kernels, self.context = kernels, context
        self.row_bytes = cache_bytes(c, PANEL, kv) // PANEL
        enough = c.num_hidden_layers if c is EMBEDDED else -(-COLD_BYTES // (self.row_bytes * context))
        self.layers = min(c.num_hidden_layers, enough)
        heads = self.layers * c.num_key_value_heads
        self.cache = KVCache(heads, replace(c, num_key_value_heads=1), context + max(WIDTHS), kv)
        fill(self.cache)
        self.caches = [self.cache.bind(head) for head in range(heads)]
        self.group = c.num_attention_heads // c.num_key_value_heads
        most = max(WIDTHS) * self.group
        self.q = allocate_aligned((most, c.head_dim), np.float32)
        self.q[...] = np.random.default_rng(3).standard_normal(self.q.shape)
        self.out = [allocate_aligned(self.q.shape, np.float32) for _ in range(os.cpu_count() or 1)]
        self.begin = np.zeros(most, np.int32)
        self.end = np.array([context + 1 + i // self.group for i in range(most)], np.int32)

    def work(self, tokens: int, threads: int) -> Callable[[int], None]:
        """Return the work of a thread: its share of the KV heads; for 0 tokens only the calls."""
        shares = [[ctypes.byref(cache) for cache in self.caches[thread::threads]] for thread in range(threads)]
        size, rows, scale = self.config.head_dim, tokens * self.group, self.config.head_dim**-0.5
        q, begin, end = address(self.q), address(self.begin), address(self.end)
        outs = [address(out) for out in self.out]

        def attend(thread: int) -> None:
            for cache in shares[thread]:
                self.kernels.attend(cache, q, size, begin, end, rows, size, scale, outs[thread], size)

        return attend


def peak(pool: CoreThreads, kernels: Any) -> float:
    """Return the billions of 8-bit multiplications per second of all threads, with data in the L1 cache."""
    count = 20_000

    def work(_thread: int) -> None:
        kernels.peak(count)

    return pool.threads * count * MACS_OF_GROUP / min(pool.measure_seconds(work) for _ in range(ROUNDS)) / 1e9


def measure_product(pool: CoreThreads, kernels: Any, shape: StackedShape, kind: Kind) -> dict[str, Any]:
    """Measure a matrix of one type at all widths."""
    product = Product(kernels, shape, kind)
    seconds = fastest(pool, {rows: product.work(rows, pool.threads) for rows in WIDTHS}, ROUNDS)
    table = {}
    for rows, taken in seconds.items():
        rate, read = rows * product.macs / taken / 1e9, product.bytes / taken / 1e9
        table[rows] = {
            "us": round(taken / product.copies * 1e6, 2),
            "gmac_s": round(rate, 1),
            "gb_s": round(read, 2),
            "over_one_row": round(taken / seconds[1], 3),
        }
    named = {"model": shape.model, "matrix": shape.name, "n": shape.n, "k": shape.k, "kind": kind.name}
    return {**named, "copies": product.copies, "mb": round(product.bytes / 1e6, 1), "rows": table}


def measure_attention(pool: CoreThreads, kernels: Any, model: str, context: int, kv: str) -> dict[str, Any]:
    """Measure the attention of a model's layer at all widths, without the time of the calls."""
    attention = TimedAttention(kernels, MODELS[model], context, kv)
    seconds = fastest(pool, {tokens: attention.work(tokens, pool.threads) for tokens in (0, *WIDTHS)}, ROUNDS)
    calls = seconds.pop(0)
    c, table = attention.config, {}
    for tokens, together in seconds.items():
        taken = (together - calls) / attention.layers
        macs = 2 * c.num_attention_heads * c.head_dim * sum(context + 1 + i for i in range(tokens))
        read = attention.row_bytes * (context + tokens) / taken / 1e9
        table[tokens] = {
            "us": round(taken * 1e6, 2),
            "gmac_s": round(macs / taken / 1e9, 1),
            "gb_s": round(read, 2),
            "over_one_row": round((together - calls) / (seconds[1] - calls), 3),
        }
    return {"model": model, "context": context, "kv": kv, "layers": attention.layers, "rows": table}


def measure(
    pool: CoreThreads, instruction_set: str, models: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure all kernels of an instruction set."""
    kernels = cpu_library.load().kernels(instruction_set)
    models = ["embedded"] if instruction_set == "portable" else models
    top = peak(pool, kernels)
    say(f"{instruction_set}: {top:.1f} GMAC/s")
    products, attention = [], []
    for shape in (shape for model in models for shape in shapes(model, MODELS[model])):
        for kind in Kind:
            products.append(measure_product(pool, kernels, shape, kind))
            say(line(f"{shape.model} {shape.name} {kind.name}", products[-1]["rows"]))
    for model in models:
        for context, kv in itertools.product(CONTEXTS, CPU_KV_FORMATS):
            if context <= MODELS[model].context_length:
                attention.append(measure_attention(pool, kernels, model, context, kv))
                say(line(f"{model} attention {context} {kv}", attention[-1]["rows"]))
    top = max(top, peak(pool, kernels))
    return {"peak_gmac_s": round(top, 1), "products": products, "attention": attention}


def add_shares(measured: dict[str, Any], memory: float) -> None:
    """Add to every rate its share of the integer peak and of the memory bandwidth."""
    for product in measured["products"]:
        for cell in product["rows"].values():
            cell["of_peak"] = round(cell["gmac_s"] / measured["peak_gmac_s"], 3)
    for entry in measured["products"] + measured["attention"]:
        for cell in entry["rows"].values():
            cell["of_bandwidth"] = round(cell["gb_s"] / memory, 3)


def line(name: str, table: dict[int, dict[str, float]]) -> str:
    """Return a line of text: microseconds, and in brackets the multiple of one row's time."""
    cells = " ".join(f"{cell['us']:9.1f} ({cell['over_one_row']:5.2f})" for cell in table.values())
    return f"{name:24s} {cells}  {table[1]['gb_s']:6.1f} GB/s {table[16]['gmac_s']:7.1f} GMAC/s"


def run(
    threads: int, instruction_sets: Sequence[str], models: Sequence[str], say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure everything; return the result object."""
    with CoreThreads(threads) as pool:
        memory, measured = bandwidth(threads), dict[str, Any]()
        for name in instruction_sets:
            measured[name] = measure(pool, name, models, say)
            memory = max(memory, bandwidth(threads))  # other programs may have taken some of it
        for found in measured.values():
            add_shares(found, memory)
    return {"threads": threads, "bandwidth_gb_s": round(memory, 1), "instruction_sets": measured}


def main() -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(physical_cores()))
    parser.add_argument("--instruction-set", action="append", help="measure only this instruction set; repeatable")
    parser.add_argument("--models", default=",".join(MODELS), help="shapes to measure, with commas between them")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sets = args.instruction_set or cpu_library.load().instruction_sets
    result = run(args.threads, sets, args.models.split(","), print)
    result_file.write(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
