"""Descriptions and memory bandwidth of the processor and the GPU."""

import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from localdflash.base.system import limits


def bandwidth(threads: int = 0) -> float:
    """Measure the GB/s at which `threads` threads (0: `reading_threads`) read uncached memory."""
    threads = threads or reading_threads()
    data = np.ones(32 * 1024 * 1024, np.uint64)
    parts = np.array_split(data, threads)
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(7):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            times.append(time.perf_counter() - began)
    return data.nbytes / median(times[1:]) / 1e9


def reading_threads() -> int:
    """Return how many threads `bandwidth` uses: one per logical processor, at most eight."""
    return min(len(limits.allowed_processors()), 8)


def describe_processor() -> str:
    """Return the processor's name and its integer dot-product features."""
    info = read_cpuinfo()
    if not info:
        return platform.processor() or platform.machine()
    features = [f for f in ("avx2", "avx_vnni", "avx512_vnni", "avx512_bf16") if f in info.get("flags", "").split()]
    return f"{info.get('model name', 'CPU')} ({' '.join(features)})"


def read_cpuinfo() -> dict[str, str]:
    """Return the fields of the first processor in Linux's /proc/cpuinfo; empty on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def describe_gpu() -> str:
    """Return the GPU's name, multiprocessors, memory and CUDA version."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = f"{properties.total_memory / 1e9:.0f} GB"
    return f"{properties.name} ({properties.multi_processor_count} SMs, {memory}, CUDA {torch.version.cuda})"


def gpu_bandwidth() -> float:
    """Measure the GB/s at which the GPU reads its uncached memory."""
    import torch

    data = torch.ones(1 << 28, device="cuda")
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = time.perf_counter()
        data.sum()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return data.nbytes / median(times) / 1e9
