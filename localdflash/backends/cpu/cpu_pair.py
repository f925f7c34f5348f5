"""A pair on the CPU engine: greedy steps in one call of C++, any other step as `HostPair` has it, over the same state.

A step of a small model takes a tenth of a millisecond; looking for drafts, walking what was verified and choosing
lengths in Python would take as long again. The rule is `HostPair`'s, and so are its results.
"""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int32, c_void_p
from typing import Any

import numpy as np

from localdflash.backends.cpu.cpu_library import MAX_ROWS, Library, address
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.cpu.drafting import Drafting, NativeController, NativeLookup
from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.engine.controller import Controller
from localdflash.engine.draft import NOTHING
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, Step
from localdflash.engine.sampling import NOT_NUMBERS, Sampler

Propose = ctypes.CFUNCTYPE(c_int32, c_int32, c_int32, POINTER(c_int32), POINTER(c_double))
RAISED, NO_NUMBERS, NO_TOKEN = -1, -2, -3  # what a step says instead of 0


class CallsStruct(ctypes.Structure):
    """See greedy.h."""

    _fields_ = [
        ("verify", c_void_p),
        ("verifies", c_void_p),
        ("propose", Propose),
        ("now", c_void_p),
        ("longest", c_int32),
    ]


class AskedStruct(ctypes.Structure):
    """See greedy.h."""

    _fields_ = [
        *((name, c_int32) for name in ("anchor", "length", "room", "drafting")),
        ("ends", c_void_p),
        ("end_count", c_int32),
    ]


class TakenStruct(ctypes.Structure):
    """See greedy.h."""

    _fields_ = [
        ("tokens", c_int32 * MAX_ROWS),
        *((name, c_int32) for name in ("count", "source", "drafted")),
        ("draft_ms", c_double),
        ("verify_ms", c_double),
    ]


class CpuPair(HostPair):
    """See `HostPair`. A controller of another kind than its own keeps to steps in Python."""

    target: CpuTarget

    def __init__(
        self, target: CpuTarget, drafters: Sequence[Drafter] = (), controller: Controller | None = None
    ) -> None:
        self._model = next((drafter for drafter in drafters if drafter.is_model), None)
        self._drafting: Drafting | None = None
        if type(controller) is Controller and drafters and isinstance(drafters[0], LookupDrafter):
            self._drafting = Drafting(target.team.library, controller, self._model.name if self._model else "")
            drafters = [NativeLookup(self._drafting), *drafters[1:]]
            controller = NativeController(self._drafting)
        super().__init__(target, drafters, controller)
        self._own = self.controller
        self._raised: list[BaseException] = []
        self._engine = target.for_steps()
        self._calls = self._bind(target.team.library)
        self._asked, self._taken = AskedStruct(), TakenStruct()
        self._known_ends: frozenset[int] | None = None

    def _bind(self, library: Library) -> CallsStruct:
        self._one = library.function("ldf_step", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        calls = CallsStruct()
        calls.verify = library.address_of("ldf_verify_by_engine")
        calls.verifies = ctypes.addressof(self._engine)
        calls.now = library.address_of("ldf_now")
        if self._model and self._drafting:
            calls.propose, calls.longest = _calling(self._model, self._raised), self._model.longest
        return calls

    def _step(self, sampler: Sampler, room: int) -> Step:
        if not sampler.takes_the_likeliest or self.controller is not self._own or (self._own and not self._drafting):
            return super()._step(sampler, room)
        taken = self._take(room)
        committed = taken.tokens[: taken.count]
        if self._drafting and self._model:
            self._model.observe([self.ids[-1], *committed[:-1]], self.target.tapped(taken.count))
        self.target.keep(taken.count)
        self.ids += committed
        drafter = self._drafting.names[taken.source] if self._drafting and taken.drafted else NOTHING.drafter
        return Step(committed, drafter, taken.drafted, taken.count - 1, taken.draft_ms, taken.verify_ms)

    def _take(self, room: int) -> TakenStruct:
        """One call; its errors are raised as those of a step in Python."""
        asked, taken = self._asked, self._taken
        asked.anchor, asked.length, asked.room, asked.drafting = self.ids[-1], self.target.length, room, self.drafting
        if self._known_ends is not self.ends:
            self._known_ends, self._ends = self.ends, np.array(sorted(self.ends), np.int32)
            asked.ends, asked.end_count = address(self._ends), len(self._ends)
        self._engine.pool = self.target.team.pool
        handle = self._drafting.handle if self._drafting else None
        said = self._one(handle, ctypes.byref(self._calls), ctypes.byref(asked), ctypes.byref(taken))
        if said == RAISED:
            raise self._raised.pop()
        if said == NO_NUMBERS:
            raise LocaldflashError(NOT_NUMBERS)
        if said == NO_TOKEN:
            raise UsageError(f"a token is not one of the model's {self.target.vocab_size}")
        return taken


def _calling(model: Drafter, raised: list[BaseException]) -> Any:
    """A drafter as C++ calls it; what it raises is kept for whoever called C++."""

    def propose(anchor: int, limit: int, tokens: Any, confidence: Any) -> int:
        try:
            draft = model.propose(anchor, limit).first(limit)
            for node, token in enumerate(draft.tokens):
                tokens[node], confidence[node] = token, draft.confidence[node]
            return len(draft)
        except BaseException as error:
            raised.append(error)
            return RAISED

    return Propose(propose)
