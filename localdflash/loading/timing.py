"""Timing the two engines that run a pair on the processor, so that the faster one is chosen: our own or llama.cpp.

Both are timed when a pair is loaded for the first time, one after the other, and the result is kept: later loads only
recall it. Where the file is too large for two loads in a row, or the machine too busy for a timing that is kept, the
rule of plan/choice.py decides instead.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from localdflash.backend import free
from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, Target
from localdflash.errors import LocaldflashError
from localdflash.loading.choice import HOST_BACKENDS, NOT_TIMED, Case, HostChoice, likely
from localdflash.loading.load import LoadedPair, Options
from localdflash.machine import measurements
from localdflash.machine.cores import physical_cores

WIDTHS = (1, 4, 8)  # rows of the forwards that are timed
CONTEXT = 512  # tokens, at most, of the pairs that are timed
SECONDS = 0.3  # to repeat the timing for; once, where that takes longer
LARGEST_SHARE = 3  # a file larger than this part of the free memory is not loaded twice to be timed
ACCEPTED = 0.8  # probability of a drafted token to be right that engines are compared with


def choose(case: Case, options: Options) -> HostChoice:
    """The engine to load, both of them timed if they have to be and can be."""
    choice = likely(case)
    if choice.why != NOT_TIMED or case.size() * LARGEST_SHARE > free.system_budget().free or _busy():
        return choice
    context = min(CONTEXT, options.context or CONTEXT)
    found = {
        engine: _timed(replace(options, backend=engine, context=context, progress=None)) for engine in HOST_BACKENDS
    }
    if not all(found.values()):  # it may work next time: nothing is kept, and where ours fails again, it says why
        return HostChoice("cpu", NOT_TIMED)
    for engine, ms in found.items():
        measurements.remember(case.name(engine), ms, f"forwards of {', '.join(map(str, WIDTHS))} rows")
    return likely(case)


def _busy() -> bool:
    """Whether more programs want to run than there are cores: what is timed then says nothing, in either's favour."""
    return os.getloadavg()[0] > len(physical_cores())


def ms_per_token(costs: Controller, drafters: Sequence[Drafter], widest: int) -> float:
    """Expected milliseconds: one share of the tokens is decoded plainly, one comes from the drafts of each drafter."""
    plain = costs.verify_ms(1)
    shares = [plain]
    for drafter in drafters:
        expected, best = 1.0, plain
        for nodes in range(1, min(drafter.longest, widest - 1) + 1):
            expected += ACCEPTED**nodes
            best = min(best, (costs.verify_ms(nodes + 1) + costs.draft_ms[drafter.name]) / expected)
        shares.append(best)
    return sum(shares) / len(shares)


class Trial(LoadedPair):
    """A pair that is loaded to be timed: `ms` a token."""

    def _host_pair(self, model_drafters: list[Drafter]) -> HostPair:
        drafters: list[Drafter] = [LookupDrafter(), *model_drafters] if self.options.draft else []
        self.ms = _ms(self.target, drafters)
        return HostPair(self.target)


def _timed(options: Options) -> float:
    """Milliseconds a token of a pair, 0 where it cannot be loaded."""
    try:
        with Trial(options) as trial:
            return trial.ms
    except LocaldflashError:
        return 0.0


def _ms(target: Target, drafters: Sequence[Drafter]) -> float:
    """The fastest of some rounds: what disturbs a measurement only ever makes it longer."""
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < SECONDS:
        costs = calibrate(target, drafters, WIDTHS, rounds=1)
        best = min(best, ms_per_token(costs, drafters, WIDTHS[-1]))
    return best
