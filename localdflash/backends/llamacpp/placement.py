"""GPUs as llama.cpp reports them, and placements of a model: on a GPU, in main memory, or on both."""

from dataclasses import dataclass, field

from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.free import system_budget

MARGIN = 512 << 20  # bytes of GPU memory left for the driver, compiled shaders and staging
ALL_LAYERS = 1 << 20  # more than any model has


@dataclass(frozen=True)
class Device:
    """GPU as llama.cpp reports it; `free` and `size` are bytes of its memory."""

    name: str  # CUDA0, Vulkan0, Metal ...
    description: str
    integrated: bool  # shares main memory
    free: int
    size: int
    handle: int = field(default=0, compare=False, repr=False)  # ggml_backend_dev_t

    def budget(self) -> MemoryBudget:
        """Return the memory that a pair may use; an integrated GPU shares main memory."""
        memory = system_budget()
        if self.integrated:
            return MemoryBudget(min(self.free, memory.free), max(MARGIN, memory.margin), memory.what)
        return MemoryBudget(self.free, MARGIN, f"memory of {self.name}", memory)


@dataclass(frozen=True)
class Placement:
    """Placement of a model: its last `layers` and head on the device, experts of layers `experts` in main memory."""

    device: Device | None = None
    layers: int = 0
    experts: range = range(0)

    @property
    def identity(self) -> tuple[object, ...]:
        """Values that decide the bits of a result."""
        if not self.device:
            return ()
        return self.device.name, self.device.description, self.layers, self.experts

    def all_layers(self) -> "Placement":
        """Return a drafter's placement: all layers on the device that holds the target's head."""
        return Placement(self.device, ALL_LAYERS) if self.layers else PROCESSOR


PROCESSOR = Placement()
