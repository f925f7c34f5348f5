"""Runs the sequences of `Stepper`: as captured CUDA graphs on a GPU, directly on a CPU.

Every sequence is captured once for each number of attention chunks, of which there are four; lengths inside them are
read on the device. After a step its record is copied to pinned memory and an event is set, so that the host can wait
for that step alone. A CUDA error that sticks to the process becomes `DeviceFailed`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from localdflash.cuda.leaving import Leaving, Outbox
from localdflash.cuda.stack import ROWS
from localdflash.cuda.stepper import Stepper, Way
from localdflash.errors import DeviceFailed
from localdflash.kernels.attention import BUCKETS, CHUNK

WARM_UPS = 2  # runs before a capture: kernels compile in the first


@dataclass(frozen=True, slots=True)
class Arrival:
    """A step that was started; `event` is None on a CPU, where it has already happened."""

    event: torch.cuda.Event | None


class Runner:
    """One stream, one memory pool, one graph for every sequence and size that was asked for."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._slots = stepper.cache.k.shape[1]
        self._graphed = stepper.device.type == "cuda"
        self._graphs: dict[tuple[str, int], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._graphed else None
        self._records = torch.zeros_like(stepper.records, device="cpu", pin_memory=self._graphed)
        self._outbox = Outbox(stepper.device)
        self._leaving: Leaving | None = None

    def step(self, way: Way, greedy: bool, length: int) -> Arrival:
        """Start a step at a context of at most `length` tokens."""
        self.make_room(length + ROWS)
        splits = chunks(length, self._slots)
        with device_errors():
            self._run(f"{way} {'greedy' if greedy else 'sampled'}", splits, lambda: self._recorded(way, greedy, splits))
            if not self._graphed:
                return Arrival(None)
            event = torch.cuda.Event()
            event.record()
            return Arrival(event)

    def _recorded(self, way: Way, greedy: bool, splits: int) -> None:
        self.stepper.step(way, greedy, splits)
        self._records.copy_(self.stepper.records, non_blocking=True)

    def record(self, arrival: Arrival, number: int) -> list[int]:
        """Wait for a step, the `number`-th of the stepper; return its record."""
        with device_errors():
            if arrival.event:
                arrival.event.synchronize()
        fields: list[int] = self._records[number % len(self._records)].tolist()
        return fields

    def extend(self, length: int) -> None:
        """Compute the 16 tokens after a context of `length`."""
        self.make_room(length + ROWS)
        splits = chunks(length, self._slots)
        with device_errors():
            self._run("extend", splits, lambda: self.stepper.extend(splits))

    def catch_up(self, length: int) -> None:
        """Give the drafter 16 more tokens of a context of `length`."""
        self.make_room(length + ROWS)
        with device_errors():
            self._run("catch up", 0, self.stepper.catch_up)

    def put_aside(self, groups: Sequence[Sequence[Tensor]], slots: int) -> Leaving:
        """Let the first `slots` rows of each group's tensors leave the device, while it goes on with something else."""
        self.synchronize()
        self.make_room(len(self.stepper.tokens))
        self._leaving = self._outbox.send(groups, slots)
        return self._leaving

    def make_room(self, slots: int) -> None:
        """Wait until nothing that is leaving the device is in the first `slots` slots of the caches."""
        if self._leaving:
            with device_errors():
                self._leaving.wait_for(slots)

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        if self._graphed:
            with device_errors():
                torch.cuda.synchronize(self.stepper.device)

    def _run(self, name: str, splits: int, sequence: Callable[[], None]) -> None:
        if not self._graphed:
            sequence()
            return
        key = (name, splits)
        if key not in self._graphs:
            self._graphs[key] = self._capture(sequence)
        self._graphs[key].replay()

    def _capture(self, sequence: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The sequence as a graph. The runs before it are undone: they only write past the context, and the state."""
        state = self.stepper.state.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                sequence()
                self.stepper.state.copy_(state)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            sequence()
        return graph


def chunks(length: int, slots: int) -> int:
    """How many attention chunks a step from `length` tokens is captured with, in a cache of `slots`."""
    return min(next(splits for splits in BUCKETS if length + ROWS <= splits * CHUNK), -(-slots // CHUNK))


@contextmanager
def device_errors() -> Iterator[None]:
    """CUDA errors that stick to the process, so that every later call has them too, as `DeviceFailed`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        if "CUDA" not in str(error) or not _is_lost():
            raise
        first = str(error).splitlines()[0]
        raise DeviceFailed(f"the GPU failed and this process cannot use it any more ({first}); start again") from error


def _is_lost() -> bool:
    """Whether the GPU answers no call of this process any more."""
    try:
        torch.cuda.synchronize()
    except (RuntimeError, AssertionError):
        return True
    return False
