"""Decoding modes that the code benchmark compares, and the costs that each kind of pair reports."""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from localdflash.base.machine import hardware
from localdflash.engine.calibrate import WIDTHS
from localdflash.engine.controller import Controller
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Pair
from localdflash.lab.bench.llama_baseline import llama_baseline
from localdflash.lab.bench.verify_table import verify_table
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options


@contextmanager
def open_modes(loaded: LoadedPair, options: Options) -> Iterator["HostModes | CudaModes"]:
    """Yield the modes of a pair that was loaded with `options`."""
    if loaded.host_pair is None:
        yield CudaModes(loaded.pair)
        return
    undrafted = replace(options, backend=loaded.backend, draft=False)
    with LoadedPair(undrafted) as plain, llama_baseline(loaded) as llama:
        assert plain.host_pair
        yield HostModes(loaded.host_pair, plain.host_pair, llama)


class HostModes:
    """Modes of a pair that does not run on the CUDA engine; `llama` is None if llama.cpp cannot run the model."""

    def __init__(self, drafting: HostPair, plain: HostPair, llama: Pair | None) -> None:
        self.plain, self.llama, self._drafting = plain, llama, drafting

    @property
    def dflash_alone(self) -> Pair | None:
        """Return a pair with only the DFlash drafter, whose whole block is verified in every step; None without one."""
        drafters = [drafter for drafter in self._drafting.drafters if drafter.is_model]
        if not drafters:
            return None
        return HostPair(self._drafting.target, drafters, FullDraftController())

    def step_costs(self) -> dict[str, Any]:
        """Return the measured milliseconds of a single-token step, a draft and a verify step."""
        controller, max_width = self._drafting.controller, self._drafting.target.max_width
        if controller is None:
            return {}
        return {
            "ar": round(1.0 / controller.baseline_rate, 4),
            "draft": {name: round(ms, 4) for name, ms in controller.draft_ms.items()},
            "verify": {width: round(controller.costs.predict_ms(width), 4) for width in WIDTHS if width <= max_width},
        }

    def measure_verify(self, seconds: float) -> dict[str, Any]:
        """Return the cost of a verify step by batch width, measured for `seconds`; may be empty."""
        self._drafting.forget()
        self.plain.forget()
        return verify_table(self._drafting.target, self.plain.target, seconds)

    def machine(self) -> dict[str, Any]:
        """Return the device, its memory bandwidth, and the peak memory used."""
        status = Path("/proc/self/status").read_text("ascii")  # `ru_maxrss` includes the parent process
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
        return {"bandwidth_gb_s": round(hardware.bandwidth(), 1), "peak_memory_mb": int(peak) >> 10}


class FullDraftController(Controller):
    """Controller that verifies whole drafts in every step; with `only`, drafts of that drafter alone."""

    def __init__(self, only: str = "") -> None:
        super().__init__({1: 1.0, 2: 1.0}, {})
        self._only = only

    def predict_rate(self, drafter: str, limit: int) -> float:
        """See `Controller`."""
        return math.inf

    def choose_prefix(self, draft: Draft) -> tuple[int, float]:
        """See `Controller`."""
        if self._only and draft.drafter != self._only:
            return 0, 0.0
        return len(draft), sys.float_info.max  # less than `predict_rate`, so that model drafters draft as well


class CudaModes:
    """Modes of the CUDA engine."""

    llama: Pair | None = None

    def __init__(self, pair: Pair) -> None:
        from localdflash.backends.cuda.cuda_pair import CudaPair

        assert isinstance(pair, CudaPair)
        self._pair: CudaPair = pair
        self.plain: Pair = pair.with_mode("plain")

    @property
    def dflash_alone(self) -> Pair | None:
        """See `HostModes`."""
        return self._pair.with_mode("draft") if self._pair.stepper.drafter else None

    def step_costs(self) -> dict[str, Any]:
        """See `HostModes`."""
        return {mode: round(record.ms, 4) for mode, record in self._pair.modes.records.items()}

    def measure_verify(self, seconds: float) -> dict[str, Any]:
        """See `HostModes`."""
        return {}

    def machine(self) -> dict[str, Any]:
        """See `HostModes`."""
        import torch

        return {
            "device": hardware.describe_gpu(),
            "bandwidth_gb_s": round(hardware.gpu_bandwidth(), 1),
            "peak_memory_mb": torch.cuda.max_memory_allocated() >> 20,
        }
