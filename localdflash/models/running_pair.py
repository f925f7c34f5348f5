"""What every backend's `load` returns: a pair that runs, and everything the other rooms need to know of it."""

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
    """A pair on its backend. `close` frees it, once.

    `identity` is what decides the bytes of a saved sequence beside the files and the options. `vocab_size` is the
    width of the logits. `measured` gives the bytes of each part as they are now, by the names of `predicted`, which
    is empty if nothing could be planned.
    """

    pair: Pair
    context: int  # tokens
    device: str  # "cpu" or "cuda"
    vocab_size: int
    identity: tuple[object, ...]
    measured: Callable[[], Parts]
    close: Callable[[], None]
    predicted: Parts = field(default_factory=dict)
    notices: Sequence[str] = ()  # lines for the user
    rows: str = ""  # what is certified of llama.cpp's rows, and what that costs
    host: HostPair | None = None  # the pair itself, where it is composed in Python
    on_device: Sequence[str] = ()  # what drafts where it is not, by name

    @property
    def drafters(self) -> Sequence[str]:
        """Return what drafts, by name."""
        return [drafter.name for drafter in self.host.drafters] if self.host else self.on_device


def compose(target: Target, drafters: Sequence[Drafter], options: Options) -> HostPair:
    """A pair of a target and drafters, with lookup if it may draft at all; costs that `options` lack are measured."""
    if not options.draft:
        return HostPair(target)
    drafters = [LookupDrafter(), *drafters]
    return HostPair(target, drafters, (options.costs or calibrate)(target, drafters))
