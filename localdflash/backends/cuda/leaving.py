"""Copies of sequences that leave the device through pinned memory, on a thread and a stream, and come back at once.

Slots leave in small blocks, the first ones first. A step waits only for the slots that it overwrites: a short
completion after a long chat waits for one block.
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
        self._left = 0
        self.arrived: Callable[[], None] = lambda: None  # waits until `saved` holds everything, or raises why not
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
        """Move everything; this runs on the other thread."""
        for left in self.blocks(stage):
            self._free_slots(left)

    def end(self) -> None:
        """Stop: nothing leaves any more, complete or not."""
        self._rows.clear()
        self._free_slots(self.slots)

    def _free_slots(self, left: int) -> None:
        with self._changed:
            self._left = left
            self._changed.notify_all()

    def wait_for(self, slots: int) -> None:
        """Wait until the first `slots` slots may be written over."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= min(slots, self.slots))


def bring_back(
    groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int, stage: Tensor
) -> None:
    """Copy what `Leaving` saved back into the first `slots` rows of the tensors, through the halves of `stage`.

    Before `stage` or `saved` is overwritten, wait for the stream.
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
        leaving.arrived = self._thread.submit(self._move, leaving).result
        return leaving

    def close(self) -> None:
        """Wait until nothing is on its way; the pinned memory goes."""
        self._thread.shutdown()
        self._stage = None

    def _move(self, leaving: Leaving) -> None:
        on_gpu = self._device.type == "cuda"
        try:
            with on(self._device), torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                if self._stage is None:
                    self._stage = new_stage(on_gpu)
                leaving.move(self._stage)
        finally:
            leaving.end()
