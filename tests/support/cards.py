"""Fake memory of a GPU: the tensors of this process, torch's cache, and memory used by other processes."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from torch import Tensor

from localdflash.backends.cuda.gpus import Gpu

CPU = torch.device("cpu")


class CardGpu(Gpu):
    """GPU whose tensors are in this process's memory."""

    @property
    def device(self) -> torch.device:
        """Return the CPU device, in place of a GPU."""
        return CPU


def _tensors() -> list[Tensor]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor) and thing.device == CPU]


@dataclass
class Card:
    """Memory of `size` bytes, of which other processes use `taken`; `queries` counts queries of free memory."""

    size: int
    taken: int = 0
    queries: int = 0
    _reserved: int = 0

    def allocated(self) -> int:
        """Return the bytes of the tensors created since the card was installed."""
        storages = [tensor.untyped_storage() for tensor in _tensors()]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def reserved(self) -> int:
        """Return the bytes reserved by torch until its cache is emptied."""
        self._reserved = max(self._reserved, self.allocated())
        return self._reserved

    def empty(self) -> None:
        """Free the cached memory."""
        self._reserved = self.allocated()

    def left(self) -> int:
        """Return the free bytes."""
        return self.size - self.taken - self.reserved()

    def info(self) -> tuple[int, int]:
        """Return the driver's answer."""
        self.queries += 1
        return self.left(), self.size

    def check(self) -> None:
        """Raise OutOfMemoryError if the card is overfull."""
        if self.left() < 0:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")


@contextmanager
def in_this_machine(card: Card, margin: int) -> Iterator[None]:
    """Make the CUDA engine find one GPU with this memory, and leave a margin free."""
    gc.collect()
    gc.freeze()  # existing tensors are not counted
    with (
        patch("localdflash.backends.cuda.device.find_gpus", lambda _name: [CardGpu(0)]),
        patch("localdflash.backends.cuda.cuda_sizes.has_display", lambda _device: False),
        patch("localdflash.backends.cuda.cuda_sizes.RESERVE", margin),
        patch("localdflash.backends.cuda.cuda_sizes.OTHER_BYTES", 0),
        patch.object(torch.cuda, "mem_get_info", lambda _device: card.info()),
        patch.object(torch.cuda, "memory_reserved", lambda _device: card.reserved()),
        patch.object(torch.cuda, "memory_allocated", lambda _device: card.allocated()),
        patch.object(torch.cuda, "empty_cache", card.empty),
        patch("localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, modes: dict.fromkeys(modes, 1.0)),
    ):
        try:
            yield
        finally:
            gc.unfreeze()
