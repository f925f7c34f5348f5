"""Phase `boundary`: cost of an empty kernel with and without dependent launch, and of a graph launch."""

import time
from functools import partial
from statistics import median

import torch
import triton
import triton.language as tl
from torch import Tensor

from localdflash.kernels.cuda.launch import has_pdl, launch_options, release, wait
from localdflash.lab.scripts.gpu.gpu_timing import capture_graph, microseconds
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

KERNELS = 200  # kernels in the graph that times one kernel
NODES = (50, 200, 400, 800)  # kernels in a graph whose launch is timed
LAUNCHES = 20  # samples of a median


@triton.jit  # type: ignore[untyped-decorator]
def _tick(counter, PDL: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803 (Triton reads annotations itself)
    wait(PDL)
    release(PDL)
    if tl.program_id(0) == 0:
        tl.store(counter, tl.load(counter) + 1)


def tick(counter: Tensor, programs: int, dependent: bool) -> None:
    """Add one to `counter`, int32 [1], in one program; the other programs do nothing."""
    _tick[(programs,)](counter, num_warps=4, **launch_options(dependent))


def run(setup: Setup, report: BenchReport) -> None:
    """Report microseconds per kernel, by dependent launch and grid size; on a GPU also those of a graph launch."""
    counter = torch.zeros(1, dtype=torch.int32, device=setup.device)
    gpu = setup.device.type == "cuda"
    multiprocessors = torch.cuda.get_device_properties(setup.device).multi_processor_count if gpu else 2
    count = 4 if setup.tiny else KERNELS
    for dependent in (False, True) if has_pdl(setup.device) else (False,):
        for programs in (1, multiprocessors):
            us = microseconds([partial(tick, counter, programs, dependent)] * count, setup.device)
            report.put(**{f"us_{'pdl' if dependent else 'plain'}_{'one' if programs == 1 else 'all'}": round(us, 3)})
    if not gpu:
        return
    expected = int(counter)
    microseconds([partial(tick, counter, 1, has_pdl(setup.device))] * count, setup.device)
    report.put(counted=int(counter) - expected, counted_in_order=(int(counter) - expected) % count == 0)
    for nodes in NODES:
        report.put(**{f"launch_host_us_{nodes}_nodes": round(_launch_us(counter, nodes), 1)})


def _launch_us(counter: Tensor, nodes: int) -> float:
    """Return the median microseconds that the host needs to launch a graph of `nodes` kernels."""
    replay = capture_graph([partial(tick, counter, 1, has_pdl(counter.device))] * nodes)
    times = []
    for _ in range(LAUNCHES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        replay()
        times.append((time.perf_counter() - began) * 1e6)
    torch.cuda.synchronize()
    return median(times)
