"""Loaded pair, the result of every backend's `load`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localdflash.engine.calibrate import calibrate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from localdflash.engine.pair import Drafter, Pair, Target
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import Parts


@dataclass(frozen=True, kw_only=True)
class Running:
    """Loaded pair on its backend; `close` frees it and is called once.

    Saved sequences can be reused only if files, options and `identity` are equal. `vocab_size` is the width of the
    logits.
    """

    pair: Pair
    context: int  # tokens
    device: str  # "cpu", "cuda", or a GPU's name in llama.cpp, such as "Vulkan0"
    vocab_size: int
    identity: tuple[object, ...]
    measured: Callable[[], Parts]
    close: Callable[[], None]
    predicted_memory: Parts = field(default_factory=dict)
    notices: Sequence[str] = ()  # lines for the user
    width_status: str = ""  # status of llama.cpp's bit-exact widths, and their cost
    host_pair: HostPair | None = None  # `pair`, if it is a HostPair, as on every backend but CUDA
    cuda_drafters: Sequence[str] = ()  # names of the drafters of the CUDA engine, whose pair is no `HostPair`

    @property
    def drafters(self) -> Sequence[str]:
        """Return the names of the active drafters."""
        return [drafter.name for drafter in self.host_pair.drafters] if self.host_pair else self.cuda_drafters


def compose(target: Target, drafters: Sequence[Drafter], options: Options) -> HostPair:
    """Compose a pair, with prompt lookup if `options.draft`; measure costs unless `options` provide them."""
    if not options.draft:
        return HostPair(target)
    drafters = [LookupDrafter(), *drafters]
    return HostPair(target, drafters, (options.costs or calibrate)(target, drafters))
