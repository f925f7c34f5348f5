"""Times the two engines that run a pair on the processor, ours and llama.cpp, so that the faster one is chosen.

Both are timed when a pair is loaded for the first time, one after the other, and the result is kept: later loads only
recall it. If the file is too large for two loads in a row, or the machine too busy for a timing worth keeping, the rule
of choice.py decides instead.
"""

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from localdflash.base.errors import LocaldflashError
from localdflash.base.machine import measurements
from localdflash.base.machine.cores import physical_cores
from localdflash.base.system import processors
from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target
from localdflash.loading.backends import load_on
from localdflash.loading.choice import HOST_BACKENDS, NOT_TIMED, Case, HostBackend, HostChoice, likely
from localdflash.models.load_options import Options
from localdflash.models.memory import free
from localdflash.models.registry.pair_entry import LocalPair

WIDTHS = (1, 4, 8)  # rows of the forwards that are timed
CONTEXT = 512  # tokens, at most, of the pairs that are timed
SECONDS = 0.3  # to repeat the timing for
LEAST = 2  # rounds: the first one may have found the weights on the disk
LARGEST_SHARE = 3  # a file larger than this part of the free memory is not loaded twice to be timed
ACCEPTED = 0.8  # probability of a drafted token to be right that engines are compared with


def choose(files: LocalPair, options: Options) -> HostChoice:
    """The engine to load; both are timed first if that is needed and possible."""
    drafter = (files.drafter_gguf or files.drafter_safetensors) if options.draft else None
    case = Case(files.target, drafter, options.threads, options.draft)
    choice = likely(case)
    if choice.why != NOT_TIMED or case.size() * LARGEST_SHARE > free.system_budget().free or _busy():
        return choice
    context = min(CONTEXT, options.context or CONTEXT)
    # To find the rows of llama.cpp that agree takes longer than a first start should.
    brief = replace(options, context=context, progress=None, costs=_unknown, rows="fast")
    found = {engine: _timed(engine, files, brief) for engine in HOST_BACKENDS}
    if not all(found.values()):  # it may work next time: nothing is kept, and where ours fails again, it says why
        return HostChoice("cpu", NOT_TIMED)
    for engine, ms in found.items():
        measurements.remember(case.name(engine), ms, f"forwards of {', '.join(map(str, WIDTHS))} rows")
    return likely(case)


def _busy() -> bool:
    """Whether more programs want to run than there are cores: a timing would then say nothing."""
    return processors.load() > len(physical_cores())


def ms_per_token(costs: Controller, drafters: Sequence[Drafter], widest: int) -> float:
    """Expected milliseconds: one share of the tokens is decoded plainly, one comes from the drafts of each drafter."""
    plain = costs.verify_ms(1)
    shares = [plain]
    for drafter in drafters:
        expected, best = 1.0, plain
        for nodes in range(1, min(drafter.longest, widest - 1) + 1):
            expected += ACCEPTED**nodes
            best = min(best, (costs.verify_ms(nodes + 1) + costs.drafting_ms(drafter.name, nodes)) / expected)
        shares.append(best)
    return sum(shares) / len(shares)


def _unknown(_target: Target, drafters: Sequence[Drafter]) -> Controller:
    """What a pair that is only timed is given: it generates nothing."""
    return Controller({1: 1.0, 2: 1.0}, {drafter.name: 0.0 for drafter in drafters})


def _timed(engine: HostBackend, files: LocalPair, options: Options) -> float:
    """Milliseconds per token of a pair; 0 if it cannot be loaded."""
    try:
        running = load_on(engine, files, options)
    except LocaldflashError:
        return 0.0
    assert running.host
    with closing(running):
        return _ms(running.host.target, running.host.drafters)


def _ms(target: Target, drafters: Sequence[Drafter]) -> float:
    """The fastest of some rounds: a disturbance only ever makes one longer."""
    found, began = list[float](), time.perf_counter()
    while len(found) < LEAST or time.perf_counter() - began < SECONDS:
        costs = calibrate(target, drafters, WIDTHS, rounds=1)
        found.append(ms_per_token(costs, drafters, WIDTHS[-1]))
    return min(found)
