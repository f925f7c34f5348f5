"""A GPU in software, to find what a host may not rely on: work waits in streams, and the memory is the CPU's.

* A launch happens no sooner than somebody waits for it; with a `seed` streams go on by chance, too.
* Copies from and to ordinary memory wait for their stream, as CUDA's do; those of pinned memory do not if they are told
  so. Pinned memory is poison before anything was copied there.
* A capture executes nothing, and the first replay everything.

Inside `on`, functions of torch that touch device memory behave so, and what the engine asks of `torch.cuda` is had
here. What the engine has not asked before is an error: it wants to be thought about first.
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
    """Work in its order, of which the first `done` pieces have happened."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu = gpu
        self.work: deque[Work] = deque()
        self.done = 0
        gpu.streams.append(self)

    @property
    def end(self) -> int:
        """The pieces of work so far."""
        return self.done + len(self.work)

    def reach(self, position: int) -> None:
        """Let the first `position` pieces happen, and nothing else that they do not wait for."""
        while self.done < position:
            self.done += 1
            with torch._C.DisableTorchFunction():  # what happens on the device is ordinary torch
                self.work.popleft()()

    def synchronize(self) -> None:
        """Wait for all of it."""
        self._gpu.refuse_in_capture("the host waits")
        self.reach(self.end)

    def wait_stream(self, other: "Stream") -> None:
        """Let work from now on happen after the other stream's work so far."""
        self._gpu.launch(partial(other.reach, other.end), self)

    def wait_event(self, event: "Event") -> None:
        """Let work from now on happen after the event."""
        self._gpu.launch(event.happen, self)


class Event:
    """A place in a stream."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu, self._stream, self._position = gpu, gpu.main, 0

    def record(self, stream: Stream | None = None) -> None:
        """It is after all that was put on the stream so far."""
        self._stream = stream or self._gpu.current
        self._position = self._stream.end

    def happen(self) -> None:
        """Let the work before the event happen."""
        self._stream.reach(self._position)

    def synchronize(self) -> None:
        """Wait for it."""
        self._gpu.refuse_in_capture("the host waits")
        self.happen()

    def query(self) -> bool:
        """Return whether it has happened."""
        return self._stream.done >= self._position


class Graph:
    """Work that was captured."""

    def __init__(self, gpu: "SoftwareGpu") -> None:
        self._gpu = gpu
        self.work: list[Work] = []

    def replay(self) -> None:
        """Put it on the stream once more."""
        for piece in self.work:
            self._gpu.launch(piece)


class SoftwareGpu(TorchFunctionMode):
    """One device. `seed` None: nothing happens before it is waited for."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._owned: dict[int, Tensor] = {}  # device memory by its address; kept, so that no address is used again
        self._pinned: dict[int, Tensor] = {}
        self.restart(seed)

    # ---- what a test asks

    def restart(self, seed: int | None) -> None:
        """Drop all work; from now on at another pace."""
        self.chance = None if seed is None else random.Random(seed)
        self.streams: list[Stream] = []
        self.main = self.current = Stream(self)
        self._capture: Graph | None = None

    @contextmanager
    def on(self) -> Iterator[None]:
        """Inside, `torch.cuda` is this device."""
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
        """All tensors that are reachable from an object are device memory."""
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
        """Operations as launches."""
        return Ops(**{each.name: self._launcher(getattr(ops, each.name)) for each in fields(ops)})

    def _launcher(self, operation: Callable[..., None]) -> Callable[..., None]:
        return lambda *args, **options: self.launch(partial(operation, *args, **options))

    # ---- work

    def launch(self, work: Work, stream: Stream | None = None) -> None:
        """Put work on a stream, or into the graph that is captured."""
        if self._capture:
            self._capture.work.append(work)
            return
        (stream or self.current).work.append(work)
        while self.chance and self.chance.random() < 0.45:
            busy = self.chance.choice(self.streams)
            busy.reach(min(busy.done + 1, busy.end))

    def refuse_in_capture(self, what: str) -> None:
        """RuntimeError as CUDA has it."""
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
        """A function of torch with a tensor that lies on the device among its arguments."""
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
    """It, full of what is no id, count or sensible number."""
    tensor.view(torch.uint8).fill_(POISON)
    return tensor
