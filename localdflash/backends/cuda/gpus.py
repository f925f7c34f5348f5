"""GPUs by CUDA's numbers; selects GPUs by number, name or UUID, and the first GPU with room for a pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from localdflash.base.errors import NoDevice, OutOfMemory
from localdflash.models.memory.fit import Fit, MemoryBudget, MemorySizes, fit

if TYPE_CHECKING:
    import torch

MIN_CAPABILITY = (8, 0)  # int8 and fp16 tensor cores with asynchronous copies: RTX 30 and newer
MIN_CAPABILITY_NAME = "RTX 30, A100"
_NEEDED = f"{'.'.join(map(str, MIN_CAPABILITY))} is needed ({MIN_CAPABILITY_NAME} or newer)"
ANY_GPU = ("auto", "gpu")  # values of --device that match every GPU
MIN_UUID_CHARS = 8  # shortest prefix of a UUID that selects a GPU


@dataclass(frozen=True)
class Gpu:
    """GPU, identified by the number that CUDA gives it."""

    number: int

    @property
    def device(self) -> "torch.device":
        """The torch device."""
        import torch

        return torch.device("cuda", self.number)

    @property
    def name(self) -> str:
        """Product name."""
        import torch

        return str(torch.cuda.get_device_name(self.device))

    @property
    def uuid(self) -> str:
        """UUID as `nvidia-smi -L` prints it; "" if torch does not know it."""
        import torch

        known = getattr(torch.cuda.get_device_properties(self.device), "uuid", None)
        return f"GPU-{known}" if known else ""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability."""
        import torch

        return torch.cuda.get_device_capability(self.device)

    @property
    def chip(self) -> str:
        """Compute capability as text, such as "8.6"."""
        return ".".join(map(str, self.capability))

    def matches(self, name: str) -> bool:
        """Return whether a name denotes this GPU: its number, a part of its name, or the start of its UUID."""
        uuid, query = self.uuid.lower(), name.lower()
        by_uuid = len(query) >= MIN_UUID_CHARS and (uuid.startswith(query) or uuid.startswith(f"gpu-{query}"))
        by_name = (len(query) > 2 or not query.isdecimal()) and query in self.name.lower()  # "4090" is a name
        return name == str(self.number) or by_uuid or by_name

    def describe(self) -> str:
        """Return the number, name, memory, UUID and compute capability in one line."""
        import torch

        free, size = torch.cuda.mem_get_info(self.device)
        memory, chip = f"{free / 1e9:.1f} GB free of {size / 1e9:.1f}", f"compute capability {self.chip}"
        return f"{self.number}: {', '.join(filter(None, [self.name, memory, self.uuid, chip]))}"

    def __str__(self) -> str:
        return f"{self.number} ({', '.join(filter(None, [self.name, self.uuid]))})"


def all_gpus() -> list[Gpu]:
    """Return all GPUs that CUDA sees; CUDA must be initialized."""
    import torch

    return [Gpu(number) for number in range(torch.cuda.device_count())]


def select_gpus(name: str) -> Sequence[Gpu]:
    """Return the GPUs that match `name` and run the kernels; NoDevice lists all GPUs or names one that is too old."""
    found = all_gpus()
    matching = [gpu for gpu in found if name in ANY_GPU or gpu.matches(name)]
    if not matching:
        known = f"expected one of {', '.join(map(str, found))}" if found else "CUDA sees none"
        raise NoDevice(f"--device {name}: the CUDA engine has no such GPU ({known})")
    if supported := [gpu for gpu in matching if gpu.capability >= MIN_CAPABILITY]:
        return supported
    others = f"; choose another of {', '.join(map(str, found))}" if len(found) > 1 else ""
    old = f"{matching[0].name} has compute capability {matching[0].chip}, but {_NEEDED}"
    raise NoDevice(f"{old}{others}")


def describe_roles(name: str) -> Sequence[tuple[Gpu, str]]:
    """Return each GPU with a phrase for `doctor`: when `--device name` uses it, or why it does not."""
    described, earlier = [], list[int]()
    for gpu in all_gpus():
        if name not in ANY_GPU and not gpu.matches(name):
            described.append((gpu, f"not used: --device is {name}"))
        elif gpu.capability < MIN_CAPABILITY:
            described.append((gpu, f"not used: {_NEEDED}"))
        else:
            room = f"used if {' and '.join(map(str, earlier))} cannot hold a pair with its drafter"
            described.append((gpu, room if earlier else "used first"))
            earlier.append(gpu.number)
    return described


def choose_gpu(
    gpus: Sequence[Gpu],
    sizes: MemorySizes,
    context: int,
    measure: Callable[["torch.device"], MemoryBudget],
    *,
    can_evict: bool = False,
) -> tuple[Gpu, Fit]:
    """Return the first GPU that holds target and drafter, else the first that holds the target, with the memory plan.

    `measure` is called for one GPU after another until one holds both; `can_evict`: see `fit`. If none holds the
    target, raise the OutOfMemory of the GPU with the most free memory.
    """
    others, full = list[tuple[Gpu, Fit]](), list[tuple[int, OutOfMemory]]()
    for gpu in gpus:
        budget = measure(gpu.device)
        try:
            planned = fit(sizes, budget, context, can_evict=can_evict)
        except OutOfMemory as error:
            full.append((budget.free, error))
            continue
        if planned.drafter == sizes.drafters[0]:
            return gpu, planned
        others.append((gpu, planned))
    if others:
        return others[0]
    raise max(full, key=lambda tried: tried[0])[1]
