"""Sequences on their way off the device: through pinned memory into ordinary one, on a thread and stream of their own.
And back through pinned memory, at once.

Whoever puts one aside goes on at once. Slots leave in blocks, the first ones first, and who writes over a slot waits
for no more than that slot: a short completion after a long chat waits for a block, not for the chat. Blocks are small,
so that waiting for the whole device does not take long either.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from localdflash.backends.cuda.device import on

STAGE = 16 << 20  # bytes of pinned memory, which all of it passes through


def new_stage(on_gpu: bool) -> Tensor:
    """Memory to pass through, uint8; pinned, if there is a GPU to pin it for."""
    return torch.empty(STAGE, dtype=torch.uint8, pin_memory=on_gpu)


class Leaving:
    """The first `slots` rows of tensors [slots or more, ...]; each group of them becomes one of `saved`."""

    def __init__(self, groups: Sequence[Sequence[Tensor]], slots: int) -> None:
        self.slots = slots
        self.saved: list[bytearray] = []  # a group's tensors one behind the other
        self._rows: list[tuple[Tensor, Tensor]] = []  # from and to, uint8 [slots, bytes of a row]
        self._left, self._done = 0, False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        for group in groups if slots else [()] * len(groups):
            self._add([part[:slots].flatten(1).view(torch.uint8) for part in group])

    def _add(self, parts: Sequence[Tensor]) -> None:
        self.saved.append(bytearray(sum(part.nbytes for part in parts)))
        offset = 0
        for part in parts:
            to = torch.frombuffer(self.saved[-1], dtype=torch.uint8, count=part.nbytes, offset=offset)
            self._rows.append((part, to.view(part.shape)))
            offset += part.nbytes

    def blocks(self, stage: Tensor) -> Iterator[int]:
        """Move a block a turn through `stage`, uint8 with room for a slot; yields how many slots have left by then."""
        row = sum(part.shape[1] for part, _ in self._rows)
        step = len(stage) // row if row else 1
        for first in range(0, self.slots, step):
            block = slice(first, min(first + step, self.slots))
            pieces = stage[: row * (block.stop - first)].split([part[block].nbytes for part, _ in self._rows])
            for piece, (part, _) in zip(pieces, self._rows, strict=True):
                piece.view(part[block].shape).copy_(part[block], non_blocking=True)
            if stage.is_pinned():
                event = torch.cuda.Event()
                event.record()
                event.synchronize()
            yield block.stop
            for piece, (part, to) in zip(pieces, self._rows, strict=True):
                to[block] = piece.view(part[block].shape)

    def move(self, stage: Tensor) -> None:
        """Move everything; this is the other thread."""
        for left in self.blocks(stage):
            self._tell(left)
        self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing leaves any more; an error is raised by `arrived`."""
        self._error = error
        self._rows.clear()
        self._tell(self.slots, done=True)

    def _tell(self, left: int, done: bool = False) -> None:
        with self._changed:
            self._left, self._done = left, done
            self._changed.notify_all()

    def wait_for(self, slots: int) -> None:
        """Wait until the first so many slots may be written over."""
        self._wait(lambda: self._left >= min(slots, self.slots))

    def arrived(self) -> None:
        """Wait until `saved` holds everything, or raise what went wrong with it."""
        self._wait(lambda: self._done)
        if self._error:
            raise self._error

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(condition)


def bring_back(
    groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int, stage: Tensor
) -> None:
    """What `Leaving` saved of groups of contiguous tensors becomes their first `slots` rows again.

    Through the halves of `stage`, uint8, in turn: one is filled while the other is on its way. Whoever writes over
    `stage` or `saved` afterwards must wait for the stream.
    """
    if not slots:
        return
    halves, gone = stage.chunk(2), deque[torch.cuda.Event](maxlen=2)
    for number, (part, to) in enumerate(_pieces(groups, saved, slots, len(halves[0]))):
        half = halves[number % 2][: len(part)]
        if len(gone) == 2:
            gone[0].synchronize()
        half.copy_(part)
        to.copy_(half, non_blocking=True)
        if stage.is_pinned():
            gone.append(torch.cuda.Event())
            gone[-1].record()


def _pieces(
    groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int, most: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """From where to where, uint8 of at most so many bytes each, in the order of `saved`."""
    for group, held in zip(groups, saved, strict=True):
        left = torch.frombuffer(held if isinstance(held, bytearray) else bytearray(held), dtype=torch.uint8)
        for tensor in group:
            to = tensor[:slots].view(torch.uint8).view(-1)
            part, left = left.split([len(to), len(left) - len(to)])
            yield from zip(part.split(most), to.split(most), strict=True)


class Outbox:
    """The thread that moves sequences off a device, one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "leaving")  # starts with the first sequence
        self._stage: Tensor | None = None

    def send(self, groups: Sequence[Sequence[Tensor]], slots: int) -> Leaving:
        """Let the first `slots` rows of each group of tensors leave; what wrote them must be over."""
        leaving = Leaving(groups, slots)
        self._thread.submit(self._move, leaving)
        return leaving

    def close(self) -> None:
        """Wait until nothing is on its way; the pinned memory goes."""
        self._thread.shutdown()
        self._stage = None

    def _move(self, leaving: Leaving) -> None:
        try:
            on_gpu = self._device.type == "cuda"
            with on(self._device), torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                if self._stage is None:
                    self._stage = new_stage(on_gpu)
                leaving.move(self._stage)
        except BaseException as error:  # of another thread: whoever waits must hear of it
            leaving.end(error)
