"""Phase `environment`: the machine on which the results are measured."""

import platform
import shutil
import subprocess
import sys
from typing import Any

import torch

from localdflash.backends.cuda.device import summarize_features
from localdflash.base.machine.hardware import describe_gpu, describe_processor, gpu_bandwidth
from localdflash.lab.scripts.gpu.setup import BenchReport, Setup

QUERY = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,power.limit,temperature.gpu"


def run(setup: Setup, report: BenchReport) -> None:
    """Report versions, chip, clocks, and the bandwidths of a plain reduction and of a copy."""
    report.put(python=sys.version.split()[0], system=platform.platform(), processor=describe_processor())
    tools = {name: shutil.which(name) for name in ("nvcc", "cmake")}
    report.put(torch=torch.__version__, triton=_triton_version(), **tools)
    if setup.device.type != "cuda":
        report.put(gpu=None)
        return
    properties = torch.cuda.get_device_properties(setup.device)
    report.put(
        gpu=describe_gpu(),
        cuda=torch.version.cuda,
        capability=list(torch.cuda.get_device_capability(setup.device)),
        multiprocessors=properties.multi_processor_count,
        l2_bytes=properties.L2_cache_size,
        memory_bytes=properties.total_memory,
        shared_memory_per_multiprocessor=properties.shared_memory_per_multiprocessor,
        path=summarize_features(torch.cuda.get_device_capability(setup.device)),
        read_bandwidth_gb_s=round(gpu_bandwidth(), 1),
        copy_bandwidth_gb_s=round(_copy_bandwidth(), 1),
        nvidia_smi=_nvidia_smi(),
    )


def _triton_version() -> str:
    import triton

    version: str = triton.__version__
    return version


def _copy_bandwidth() -> float:
    """Return the GB/s of a device-to-device copy, bytes read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target, times = torch.empty_like(source), []
    for _ in range(8):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        target.copy_(source)
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended))
    return float(2 * source.nbytes / min(times) / 1e6)


def _nvidia_smi() -> Any:
    """Return the fields of QUERY just after load, or the reason why they are unknown."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    return dict(zip(QUERY.split(","), (value.strip() for value in found.splitlines()[0].split(",")), strict=False))
