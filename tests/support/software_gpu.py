"""Software GPU that finds missing synchronisation: work waits in streams, and device memory is CPU memory.

* A launch runs when it is waited for; with a `seed`, streams also advance at random.
* Copies from and to pageable memory wait for their stream, as in CUDA; non-blocking copies of pinned memory do not.
  Pinned memory contains poison until something is copied there.
* A capture executes nothing; a replay executes the captured work.

Inside `on`, torch functions on device memory behave like this, and the functions of `torch.cuda` that the engine uses
are replaced. Any other function of `torch.cuda` raises an error.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from localdflash.backends.cuda.ops import Ops

POISON = 0x7E  # in every byte
CUDA = torch.device("cuda", 0)
Work = Callable[[], object]
_READS = {"cpu", "item", "tolist", "__int__", "__float__", "__bool__", "__index__"}


class Stream:
    """Ordered work, of which the first `done` pieces have run."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu = gpu
        self.work: deque[Work] = deque()
        self.done = 0
        gpu.streams.append(self)

    @property
    def end(self) -> int:
        """Return the number of pieces of work so far."""
        return self.done + len(self.work)

    def reach(self, position: int) -> None:
        """Run the first `position` pieces, and only the work that they wait for."""
        while self.done < position:
            self.done += 1
            with torch._C.DisableTorchFunction():  # work on the device is ordinary torch
                self.work.popleft()()

    def synchronize(self) -> None:
        """Run all work of the stream."""
        self._gpu.refuse_in_capture("the host waits")
        self.reach(self.end)

    def wait_stream(self, other: "Stream") -> None:
        """Make later work wait for the other stream's present work."""
        self._gpu.launch(partial(other.reach, other.end), self)

    def wait_event(self, event: "Event") -> None:
        """Make later work wait for the event."""
        self._gpu.launch(event.happen, self)


class Event:
    """Position in a stream."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu, self._stream, self._position = gpu, gpu.main, 0

    def record(self, stream: Stream | None = None) -> None:
        """Set the position after the stream's present work."""
        self._stream = stream or self._gpu.current
        self._position = self._stream.end

    def happen(self) -> None:
        """Run the work before the event."""
        self._stream.reach(self._position)

    def synchronize(self) -> None:
        """Run the work before the event, as a waiting host does."""
        self._gpu.refuse_in_capture("the host waits")
        self.happen()

    def query(self) -> bool:
        """Return whether the event has happened."""
        return self._stream.done >= self._position


class Graph:
    """Captured work."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu = gpu
        self.work: list[Work] = []

    def replay(self) -> None:
        """Put the captured work on the current stream."""
        for piece in self.work:
            self._gpu.launch(piece)


class SoftwareGpu(TorchFunctionMode):
    """Software GPU; with `seed` None, work runs only when it is waited for."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._owned: dict[int, Tensor] = {}  # device memory by address; never freed, so that no address is reused
        self._pinned: dict[int, Tensor] = {}
        self.restart(seed)

    # ---- for tests

    def restart(self, seed: int | None) -> None:
        """Drop all work and use another seed."""
        self.chance = None if seed is None else random.Random(seed)
        self.streams: list[Stream] = []
        self.main = self.current = Stream(self)
        self._capture: Graph | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Replace `torch.cuda` by this device inside the context."""
        cuda: dict[str, Any] = {
            "Event": partial(Event, self),
            "Stream": lambda device=None: Stream(self),
            "CUDAGraph": partial(Graph, self),
            "graph": self._capturing,
            "graph_pool_handle": lambda: None,
            "stream": self._using,
            "current_stream": lambda device=None: self.current,
            "synchronize": self._synchronize,
            "device": lambda device: nullcontext(),
        }
        with patch.multiple(torch.cuda, **cuda), self:
            yield

    def own(self, found: object, seen: set[int] | None = None) -> None:
        """Mark all tensors reachable from an object as device memory."""
        seen = set() if seen is None else seen
        if id(found) in seen:
            return
        seen.add(id(found))
        if isinstance(found, Tensor):
            self._owned[found.untyped_storage().data_ptr()] = found
            return
        parts: list[object] = (
            list(found) if isinstance(found, list | tuple) else list(getattr(found, "__dict__", {}).values())
        )
        if is_dataclass(found):
            parts += [getattr(found, each.name) for each in fields(found)]
        for part in parts:
            self.own(part, seen)

    def ops(self, ops: Ops) -> Ops:
        """Return the operations as launches."""
        return Ops(**{each.name: self._launcher(getattr(ops, each.name)) for each in fields(ops)})

    def _launcher(self, operation: Callable[..., None]) -> Callable[..., None]:
        return lambda *args, **options: self.launch(partial(operation, *args, **options))

    # ---- work

    def launch(self, work: Work, stream: Stream | None = None) -> None:
        """Put work on a stream, or into the graph during a capture."""
        if self._capture:
            self._capture.work.append(work)
            return
        (stream or self.current).work.append(work)
        while self.chance and self.chance.random() < 0.45:
            busy = self.chance.choice(self.streams)
            busy.reach(min(busy.done + 1, busy.end))

    def refuse_in_capture(self, what: str) -> None:
        """Raise RuntimeError during a capture, as CUDA does."""
        if self._capture:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {what}")

    def _synchronize(self, device: object = None) -> None:
        for stream in self.streams:
            stream.synchronize()

    @contextmanager
    def _using(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def _capturing(self, graph: Graph, **_options: object) -> Iterator[None]:
        self._synchronize()
        self._capture = graph
        try:
            yield
        finally:
            self._capture = None

    # ---- memory

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is Tensor.is_pinned:
            return self._is_in(self._pinned, args[0])
        if isinstance(kwargs.get("device"), torch.device) and kwargs["device"].type == "cuda":
            return self._new(self._owned, function(*args, **kwargs | {"device": "cpu"}))
        if kwargs.pop("pin_memory", False):
            return self._new(self._pinned, poisoned(function(*args, **kwargs)))
        if any(isinstance(each, Tensor) and self._is_in(self._owned, each) for each in (*args, *kwargs.values())):
            return self._on_device(function, args, kwargs)
        return function(*args, **kwargs)

    def _on_device(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a torch function with a device tensor among its arguments."""
        name, first = function.__name__, args[0]
        if name == "copy_":
            return self._copy(first, args[1], kwargs.get("non_blocking", False))
        if name == "__setitem__":
            value = args[2]
            if isinstance(value, Tensor):
                return self._copy(first[args[1]], value, False)
        if name in {"__setitem__", "fill_", "zero_"}:
            self.launch(partial(function, *args))
            return first
        if name == "clone":
            copy = self._new(self._owned, poisoned(torch.empty_like(first)))
            self.launch(partial(copy.copy_, first))
            return copy
        if name in _READS:
            self.current.synchronize()
            result = function(*args, **kwargs)
            return result.clone() if isinstance(result, Tensor) else result
        result = function(*args, **kwargs)
        computes = name == "numpy" or (isinstance(result, Tensor) and not self._is_in(self._owned, result))
        assert not computes, f"the host computes on the device's memory: {name}"
        return result

    def _copy(self, to: Tensor, source: Tensor, non_blocking: bool) -> Tensor:
        ends = [self._is_in(self._owned, each) or self._is_in(self._pinned, each) for each in (to, source)]
        waits = not (all(self._is_in(self._owned, each) for each in (to, source)) or (non_blocking and all(ends)))
        self.launch(partial(to.copy_, source))
        if waits:
            self.current.synchronize()
        return to

    def _new(self, pool: dict[int, Tensor], tensor: Tensor) -> Tensor:
        pool[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    @staticmethod
    def _is_in(pool: dict[int, Tensor], tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in pool


def poisoned(tensor: Tensor) -> Tensor:
    """Fill a tensor with values that are not valid ids, counts or numbers; return it."""
    tensor.view(torch.uint8).fill_(POISON)
    return tensor
