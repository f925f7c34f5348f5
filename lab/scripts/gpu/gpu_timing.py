"""Durations of launches: replays of a captured graph between events on a GPU, wall time on a CPU."""

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch

Call = Callable[[], object]
WARM_MS, ROUNDS = 30.0, 30  # milliseconds until the clock has ramped up; samples of a median
ASSUMED_L2 = 1 << 16  # bytes; on a CPU, where only the scripts are tested


def microseconds(calls: Sequence[Call], device: torch.device) -> float:
    """Return the median time per call of `calls`, run in sequence as one graph, or directly on a CPU."""
    replay = capture_graph(calls) if device.type == "cuda" else lambda: [call() for call in calls]
    return milliseconds(replay, device) * 1e3 / len(calls)


def capture_graph(calls: Sequence[Call]) -> Call:
    """Capture the calls as a graph, after a first run that compiles them; return a function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def milliseconds(call: Call, device: torch.device, prepare: Call | None = None, rounds: int = ROUNDS) -> float:
    """Return the median time of a call (on a CPU, of one call); `prepare` runs before each call, untimed."""
    return _on_gpu(call, prepare, rounds) if device.type == "cuda" else _on_cpu(call, prepare)


def _on_gpu(call: Call, prepare: Call | None, rounds: int) -> float:
    began = time.perf_counter()
    while (time.perf_counter() - began) * 1e3 < WARM_MS:
        if prepare:
            prepare()
        call()
        torch.cuda.synchronize()
    pairs = []
    for _ in range(rounds):  # without synchronisation, so that the GPU never waits for Python
        if prepare:
            prepare()
        began_at, ended_at = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began_at.record()
        call()
        ended_at.record()
        pairs.append((began_at, ended_at))
    torch.cuda.synchronize()
    return float(median(began_at.elapsed_time(ended_at) for began_at, ended_at in pairs))


def _on_cpu(call: Call, prepare: Call | None) -> float:
    if prepare:
        prepare()
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def l2_bytes(device: torch.device) -> int:
    """Return the bytes of the GPU's L2 cache; on a CPU ASSUMED_L2."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else ASSUMED_L2


def copies_for_cold_l2(nbytes: int, device: torch.device) -> int:
    """Return the number of copies of `nbytes` that, used in turn, keep the next copy out of the L2 cache."""
    return max(2, -(-4 * l2_bytes(device) // nbytes))
