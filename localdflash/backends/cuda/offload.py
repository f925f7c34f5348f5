"""Copies KV caches between the device and main memory, through pinned memory. A thread does the copies to main memory.

A slot holds one token's entries in a cache. Slots are copied in order, up to 16 MB at once. A step waits only for the
slots that it overwrites: a short completion after a long chat waits for one 16 MB copy.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

from localdflash.backends.cuda.device import device_context

STAGING_BYTES = 16 << 20  # size of the pinned staging buffer


def new_staging(on_gpu: bool) -> Tensor:
    """Return a staging buffer, uint8; pinned if `on_gpu`."""
    return torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=on_gpu)


class OffloadedSequence:
    """Copy of the first `slots` slots of tensors [slots or more, ...]; each group becomes a part of `saved`."""

    def __init__(self, groups: Sequence[Sequence[Tensor]], slots: int) -> None:
        self.slots = slots
        self.saved: list[bytearray] = []  # per group: its tensors, concatenated
        self._rows: list[tuple[Tensor, Tensor]] = []  # source and destination, uint8 [slots, bytes of a slot]
        self._copied = 0
        self.wait: Callable[[], None] = lambda: None  # waits until `saved` is complete; raises the copy's error
        self._changed = threading.Condition()
        for group in groups if slots else [()] * len(groups):
            self._add([part[:slots].flatten(1).view(torch.uint8) for part in group])

    def _add(self, parts: Sequence[Tensor]) -> None:
        self.saved.append(bytearray(sum(part.nbytes for part in parts)))
        offset = 0
        for part in parts:
            destination = torch.frombuffer(self.saved[-1], dtype=torch.uint8, count=part.nbytes, offset=offset)
            self._rows.append((part, destination.view(part.shape)))
            offset += part.nbytes

    def blocks(self, staging: Tensor) -> Iterator[int]:
        """Copy in blocks of slots through `staging`; yield after each how many slots the device may overwrite."""
        row = sum(part.shape[1] for part, _ in self._rows)
        step = len(staging) // row if row else 1
        for first in range(0, self.slots, step):
            block = slice(first, min(first + step, self.slots))
            pieces = staging[: row * (block.stop - first)].split([part[block].nbytes for part, _ in self._rows])
            for piece, (part, _) in zip(pieces, self._rows, strict=True):
                piece.view(part[block].shape).copy_(part[block], non_blocking=True)
            if staging.is_pinned():
                event = torch.cuda.Event()
                event.record()
                event.synchronize()
            yield block.stop
            for piece, (part, destination) in zip(pieces, self._rows, strict=True):
                destination[block] = piece.view(part[block].shape)

    def move(self, staging: Tensor) -> None:
        """Copy all slots and wake waiting steps; this runs on the offloader's thread."""
        for copied in self.blocks(staging):
            self._free_slots(copied)

    def end(self) -> None:
        """Release all slots and the tensors, whether the copy is complete or not."""
        self._rows.clear()
        self._free_slots(self.slots)

    def _free_slots(self, copied: int) -> None:
        with self._changed:
            self._copied = copied
            self._changed.notify_all()

    def wait_for(self, slots: int) -> None:
        """Wait until the first `slots` slots may be overwritten."""
        with self._changed:
            self._changed.wait_for(lambda: self._copied >= min(slots, self.slots))


def restore(
    groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int, staging: Tensor
) -> None:
    """Copy `saved` of an `OffloadedSequence` into the first `slots` slots of the tensors, through halves of `staging`.

    The caller waits for the stream before overwriting `staging` or `saved`.
    """
    if not slots:
        return
    halves, events = staging.chunk(2), deque[torch.cuda.Event](maxlen=2)
    for number, (part, destination) in enumerate(_pieces(groups, saved, slots, len(halves[0]))):
        half = halves[number % 2][: len(part)]
        if len(events) == 2:
            events[0].synchronize()
        half.copy_(part)
        destination.copy_(half, non_blocking=True)
        if staging.is_pinned():
            events.append(torch.cuda.Event())
            events[-1].record()


def _pieces(
    groups: Sequence[Sequence[Tensor]], saved: Sequence[bytes | bytearray], slots: int, max_bytes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield sources and destinations, uint8 of at most `max_bytes`, in the order of `saved`."""
    for group, part in zip(groups, saved, strict=True):
        data = torch.frombuffer(part if isinstance(part, bytearray) else bytearray(part), dtype=torch.uint8)
        for tensor in group:
            destination = tensor[:slots].view(torch.uint8).view(-1)
            source, data = data.split([len(destination), len(data) - len(destination)])
            yield from zip(source.split(max_bytes), destination.split(max_bytes), strict=True)


class Offloader:
    """Thread that copies sequences off a device, one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "offload")  # starts with the first sequence
        self._staging: Tensor | None = None

    def send(self, groups: Sequence[Sequence[Tensor]], slots: int) -> OffloadedSequence:
        """Start copying the first `slots` slots of each group of tensors; writes to the tensors must have finished."""
        sequence = OffloadedSequence(groups, slots)
        sequence.wait = self._thread.submit(self._move, sequence).result
        return sequence

    def close(self) -> None:
        """Wait until all copies are done; end the thread and free the pinned memory."""
        self._thread.shutdown()
        self._staging = None

    def _move(self, sequence: OffloadedSequence) -> None:
        on_gpu = self._device.type == "cuda"
        try:
            with device_context(self._device), torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
                if self._staging is None:
                    self._staging = new_staging(on_gpu)
                sequence.move(self._staging)
        finally:
            sequence.end()
