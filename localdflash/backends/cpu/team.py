"""The threads of the CPU engine, which the target and the drafter of a pair share."""

import ctypes
from collections.abc import Sequence

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.cpu_library import address
from localdflash.backends.cpu.packed_model import Floats
from localdflash.base.errors import LocaldflashError


class Team:
    """The library with its threads. Close it after the models that run on it."""

    def __init__(self, threads: int, cpus: Sequence[int] = (), instruction_set: str = "") -> None:
        self.library = cpu_library.load()
        self.kernels = self.library.kernels(instruction_set)
        self.threads = threads
        self._pool: int | None = self.library.new_pool(threads, list(cpus))
        self._models: list[object] = []
        # Kept, because reading a function from a struct makes it anew: microseconds of each step.
        self._forward, self._inject = self.kernels.forward, self.kernels.inject

    @property
    def instruction_set(self) -> str:
        """The name of the instruction set in use."""
        return str(self.kernels.name.decode())

    def keep(self, *parts: object) -> None:
        """Keep a model's structs until the threads have ended: one of them may still be leaving a pass."""
        self._models += parts

    def forward(self, model: cpu_library.ModelStruct, job: cpu_library.PassStruct) -> None:
        """See kernels.h."""
        self._forward(ctypes.byref(model), ctypes.byref(job), self.pool)

    def inject(self, model: cpu_library.ModelStruct, taps: Floats, start: int) -> None:
        """See kernels.h; taps [rows, n_taps * H]."""
        self._inject(ctypes.byref(model), address(taps), len(taps), start, self.pool)

    @property
    def pool(self) -> int:
        """The threads; LocaldflashError once they have ended."""
        if self._pool is None:
            raise LocaldflashError("the CPU engine was closed: load the pair again")
        return self._pool

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self.library.delete_pool(self._pool)
            self._pool = None
