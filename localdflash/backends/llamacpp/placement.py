"""A GPU as llama.cpp sees it, and where a model lies: on it, in the processor's memory, or on both."""

from dataclasses import dataclass, field

from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.free import system_budget

MARGIN = 512 << 20  # bytes of a GPU left to its driver, to compiled shaders and to staging
ALL = 1 << 20  # layers: more than any model has


@dataclass(frozen=True)
class Device:
    """A GPU as llama.cpp sees it; `free` and `size` are bytes of its memory now."""

    name: str  # CUDA0, Vulkan0, Metal ...
    description: str
    integrated: bool
    free: int
    size: int
    handle: int = field(default=0, compare=False, repr=False)

    def budget(self) -> MemoryBudget:
        """What a pair may take of it, and of the memory beside it; an integrated one has no other."""
        memory = system_budget()
        if self.integrated:
            return MemoryBudget(min(self.free, memory.free), max(MARGIN, memory.margin), memory.what)
        return MemoryBudget(self.free, MARGIN, f"memory of {self.name}", memory)


@dataclass(frozen=True)
class Placement:
    """Where a model lies: its last `layers` on the device, the head counted as one of them; the rest in memory.

    The experts of the blocks `experts` stay in memory even so, and the processor computes them.
    """

    device: Device | None = None
    layers: int = 0
    experts: range = range(0)

    @property
    def identity(self) -> tuple[object, ...]:
        """What of it decides the bits of a result."""
        if not self.device:
            return ()
        return self.device.name, self.device.description, self.layers, self.experts

    def whole(self) -> "Placement":
        """The same device for all layers of a smaller model beside this one; none if this one's head is not there."""
        return Placement(self.device, ALL) if self.layers else PROCESSOR


PROCESSOR = Placement()
