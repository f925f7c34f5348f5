"""What a pair on the CPU engine drafts by, in C++ (kernels/cpu/greedy.h): text, costs, what drafts were worth.

The same as `LookupDrafter` and `Controller`, call by call, so that a step in Python and a step in one call (see `pair`)
can take turns: which of them asks makes no difference to what comes next.
"""

import weakref
from collections.abc import Mapping, Sequence
from ctypes import byref, c_double, c_int32, c_void_p
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from localdflash.backends.cpu.cpu_library import Library, address
from localdflash.engine.controller import Controller
from localdflash.engine.draft import MAX_NODES, NOTHING, Draft
from localdflash.engine.host_pair import AGREED, GRAMMAR
from localdflash.engine.lookup import BREAK, LookupDrafter
from localdflash.engine.pair import Taps

CALLS: Mapping[str, tuple[Any, ...]] = {  # of api.cpp, by what follows "ldf_": result, and arguments after the first
    "set_documents": (None, c_void_p, c_int32),
    "observe": (None, c_void_p, c_int32),
    "rollback": (None, c_int32),
    "propose": (c_int32, c_int32, c_int32, c_void_p, c_void_p),
    "follow": (None, c_int32),
    "verify_ms": (c_double, c_int32),
    "draft_ms": (c_double, c_int32),
    "best_prefix": (c_int32, c_int32, c_void_p, c_int32, c_void_p),
    "looks": (c_int32,),
    "promise": (c_double, c_int32, c_int32),
    "may_probe": (c_int32, c_int32, c_int32, c_double),
    "learn_verify": (None, c_int32, c_double),
    "learn_looking": (None, c_int32, c_double, c_double),
    "learn_rest": (None, c_double),
    "learn_draft": (None, c_int32, c_double),
    "judge": (None, c_int32, c_void_p, c_int32, c_int32),
}


class Drafting:
    """The state, with the costs of a controller that has learned nothing yet; `model` names a drafter, or is empty."""

    def __init__(self, library: Library, known: Controller, model: str) -> None:
        self.names = (LookupDrafter.name, AGREED, model, GRAMMAR)  # in the order of `Source` in controller.h
        self.drafters = {LookupDrafter.name, model}
        short, growth = (np.array(times, np.float64) for times in known.costs.measured)
        drafts = np.array([known.draft_ms.get(name, 0.0) for name in self.names])
        new = library.function("ldf_drafting_new", c_void_p, c_void_p, c_void_p, c_int32, c_void_p)
        self.handle: int = new(address(short), address(growth), len(short), address(drafts))
        weakref.finalize(self, library.function("ldf_drafting_delete", None, c_void_p), self.handle).atexit = False
        self.calls = SimpleNamespace(
            **{
                name: partial(library.function(f"ldf_{name}", result, c_void_p, *arguments), self.handle)
                for name, (result, *arguments) in CALLS.items()
            }
        )


class NativeLookup:
    """See `LookupDrafter`."""

    name = LookupDrafter.name
    is_model = autoregressive = False
    waiting = 0
    longest = MAX_NODES

    def __init__(self, drafting: Drafting, documents: Sequence[Sequence[int]] = ()) -> None:
        self._drafting, self._calls = drafting, drafting.calls  # the first one, so that the second stays valid
        self._documents: Sequence[Sequence[int]] = ()
        self._tokens, self._confidence = np.empty(MAX_NODES, np.int32), np.empty(MAX_NODES)
        self._places = address(self._tokens), address(self._confidence)
        self.set_documents(documents)

    def set_documents(self, documents: Sequence[Sequence[int]]) -> None:
        """See `Pair`; what was observed stays."""
        if documents == self._documents:
            return
        self._documents = documents
        ids = np.array([token for document in documents for token in (*document, BREAK)], np.int32)
        self._calls.set_documents(address(ids), len(ids))

    def observe(self, ids: Sequence[int], taps: Taps | None = None) -> None:
        """See `Drafter`."""
        fresh = np.array(ids, np.int32)
        self._calls.observe(address(fresh), len(fresh))

    def propose(self, anchor: int, limit: int) -> Draft:
        """See `Drafter`."""
        count = self._calls.propose(anchor, limit, *self._places)
        if not count:
            return NOTHING
        return Draft(self.name, self._tokens[:count].tolist(), self._confidence[:count].tolist())

    def rollback(self, length: int) -> None:
        """See `Drafter`."""
        self._calls.rollback(length)

    def save(self) -> bytes:
        """See `Drafter`. Empty: the ids hold everything."""
        return b""

    def load(self, state: bytes, ids: Sequence[int]) -> None:
        """See `Drafter`."""
        self.rollback(0)
        self.observe(ids)


class NativeController(Controller):
    """See `Controller`."""

    def __init__(self, drafting: Drafting) -> None:
        self._drafting, self._calls = drafting, drafting.calls
        self._sources = {name: source for source, name in enumerate(drafting.names)}
        self._drafters = drafting.drafters
        self._promised = c_double()

    def follow(self, length: int) -> None:
        """See `Controller`."""
        self._calls.follow(length)

    def verify_ms(self, rows: int) -> float:
        """See `Controller`."""
        return float(self._calls.verify_ms(rows))

    @property
    def draft_ms(self) -> Mapping[str, float]:
        """See `Controller`."""
        return {name: self._calls.draft_ms(source) for name, source in self._sources.items() if name in self._drafters}

    def drafting_ms(self, drafter: str, nodes: int) -> float:
        """See `Controller`; a block takes the same for any number."""
        return float(self._calls.draft_ms(self._sources[drafter]))

    @property
    def plain_rate(self) -> float:
        """See `Controller`."""
        return 1.0 / self.verify_ms(1)

    def best_prefix(self, draft: Draft) -> tuple[int, float]:
        """See `Controller`."""
        claimed = np.array(draft.confidence, np.float64)
        source = self._sources[draft.drafter]
        nodes = self._calls.best_prefix(source, address(claimed), len(claimed), byref(self._promised))
        return nodes, self._promised.value

    def looks(self) -> bool:
        """See `Controller`."""
        return bool(self._calls.looks())

    def promise(self, drafter: str, limit: int) -> float:
        """See `Controller`."""
        return float(self._calls.promise(self._sources[drafter], limit))

    def nodes(self, drafter: str, limit: int) -> int:
        """See `Controller`; a block takes the same for any number."""
        return limit

    def pays_to_read(self, drafter: str, waiting: int, rate: float, promised: float) -> bool:
        """See `Controller`."""
        return True

    def may_probe(self, drafter: str, limit: int, rate: float, waiting: int = 0) -> bool:
        """See `Controller`."""
        return bool(self._calls.may_probe(self._sources[drafter], limit, rate))

    def judge(self, drafter: str, confidence: Sequence[float], right: int) -> None:
        """See `Controller`."""
        claimed = np.array(confidence, np.float64)
        self._calls.judge(self._sources[drafter], address(claimed), len(claimed), right)

    def learn_answer(self, tokens: int) -> None:
        """See `Controller`; nothing waits to be read here."""

    def learn_verify(self, rows: int, ms: float) -> None:
        """See `Controller`."""
        self._calls.learn_verify(rows, ms)

    def learn_looking(self, tokens: int, ms: float, looking_ms: float) -> None:
        """See `Controller`."""
        self._calls.learn_looking(tokens, ms, looking_ms)

    def learn_rest(self, ms: float) -> None:
        """See `Controller`."""
        self._calls.learn_rest(ms)

    def learn_draft(self, drafter: str, ms: float, nodes: int = 1) -> None:
        """See `Controller`."""
        self._calls.learn_draft(self._sources[drafter], ms)
