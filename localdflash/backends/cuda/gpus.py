"""GPUs that CUDA sees, numbered as CUDA does; selection by number, name or UUID, else the first with room."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localdflash.base.errors import NoDevice, OutOfMemory
from localdflash.models.memory.fit import Fit, MemoryBudget, MemorySizes, fit

if TYPE_CHECKING:
    import torch

OLDEST = (8, 0)  # compute capability: int8 and fp16 tensor cores with asynchronous copies, RTX 30 and newer
OLDEST_NAME = "RTX 30, A100"
_NEEDED = f"{'.'.join(map(str, OLDEST))} is needed ({OLDEST_NAME} or newer)"
ANY = ("auto", "gpu")
LEAST_UUID = 8  # characters of a UUID that are taken for it


@dataclass(frozen=True)
class Gpu:
    """A GPU by CUDA's number."""

    number: int

    @property
    def device(self) -> "torch.device":
        """It, as torch has it."""
        import torch

        return torch.device("cuda", self.number)

    @property
    def name(self) -> str:
        """Return what its maker calls it."""
        import torch

        return str(torch.cuda.get_device_name(self.device))

    @property
    def uuid(self) -> str:
        """As `nvidia-smi -L` says it; empty where torch does not know it."""
        import torch

        known = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return f"GPU-{known}" if known else ""

    @property
    def capability(self) -> tuple[int, int]:
        """Its compute capability."""
        import torch

        return torch.cuda.get_device_capability(self.device)

    @property
    def chip(self) -> str:
        """Its compute capability, as NVIDIA writes it."""
        return ".".join(map(str, self.capability))

    def is_called(self, name: str) -> bool:
        """Return whether a name denotes this GPU: its number, a part of its name, or the start of its UUID."""
        uuid, asked = self.uuid.lower(), name.lower()
        by_uuid = len(asked) >= LEAST_UUID and (uuid.startswith(asked) or uuid.startswith(f"gpu-{asked}"))
        by_name = (len(asked) > 2 or not asked.isdecimal()) and asked in self.name.lower()  # "4090" is no number
        return name == str(self.number) or by_uuid or by_name

    def described(self) -> str:
        """Return all that there is to say of it: number, name, memory, UUID, compute capability."""
        import torch

        free, size = torch.cuda.mem_get_info(self.device)
        memory, chip = f"{free / 1e9:.1f} GB free of {size / 1e9:.1f}", f"compute capability {self.chip}"
        return f"{self.number}: {', '.join(filter(None, [self.name, memory, self.uuid, chip]))}"

    def __str__(self) -> str:
        return f"{self.number} ({', '.join(filter(None, [self.name, self.uuid]))})"


def all_gpus() -> list[Gpu]:
    """Return all that CUDA sees, once it has started."""
    import torch

    return [Gpu(number) for number in range(torch.cuda.device_count())]


def able(name: str) -> Sequence[Gpu]:
    """The GPUs that `name` may mean and that the kernels run on. NoDevice says which there are, or what is too old."""
    found = all_gpus()
    meant = [gpu for gpu in found if name in ANY or gpu.is_called(name)]
    if not meant:
        there = f"there are {', '.join(map(str, found))}" if found else "CUDA sees none"
        raise NoDevice(f"--device {name}: the CUDA engine has no such GPU, {there}")
    if new := [gpu for gpu in meant if gpu.capability >= OLDEST]:
        return new
    others = f"; there are {', '.join(map(str, found))}" if len(found) > 1 else ""
    old = f"{meant[0].name} has compute capability {meant[0].chip}: {_NEEDED}"
    raise NoDevice(f"{old}{others}")


def roles(name: str) -> Sequence[tuple[Gpu, str]]:
    """Each GPU with when `able(name)` has it taken, or why it has not: a few words for `doctor`."""
    told, before = [], list[int]()
    for gpu in all_gpus():
        if name not in ANY and not gpu.is_called(name):
            told.append((gpu, f"not taken, since device is {name}"))
        elif gpu.capability < OLDEST:
            told.append((gpu, f"not taken: {_NEEDED}"))
        else:
            room = f"taken where there is no room on {' and '.join(map(str, before))} for a pair with its drafter"
            told.append((gpu, room if before else "taken first"))
            before.append(gpu.number)
    return told


def place(
    gpus: Sequence[Gpu],
    sizes: MemorySizes,
    wanted: int,
    measure: Callable[["torch.device"], MemoryBudget],
    *,
    roomy: bool = False,
) -> tuple[Gpu, Fit]:
    """Return the first GPU that holds the pair with its drafter, else the first that holds it at all.

    A GPU is measured only if the ones before it have no room. OutOfMemory is that of the GPU with the most memory.
    """
    others, full = list[tuple[Gpu, Fit]](), list[tuple[int, OutOfMemory]]()
    for gpu in gpus:
        budget = measure(gpu.device)
        try:
            planned = fit(sizes, budget, wanted, roomy=roomy)
        except OutOfMemory as error:
            full.append((budget.free, error))
            continue
        if planned.drafter == sizes.drafters[0]:
            return gpu, planned
        others.append((gpu, planned))
    if others:
        return others[0]
    raise max(full, key=lambda tried: tried[0])[1]
