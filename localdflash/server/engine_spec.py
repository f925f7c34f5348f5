"""Options that a client requests of the daemon, without the code that connects to it."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

PairRole = Literal["chat", "completion"]
# If a pair to unload has requests: wait for them, raise ModelBusy if a chat answer is among them, or cancel them.
EvictionPolicy = Literal["wait", "refuse", "end"]
ROLES: tuple[PairRole, ...] = ("chat", "completion")


@dataclass(frozen=True)
class EngineSpec:
    """Requested pair and its options. `options` are fields of `localdflash.models.load_options.Options`."""

    options: Mapping[str, object]
    given: Collection[str] = ()  # options that a loaded pair must have; the others apply when a pair is loaded
    idle: float = 0.0  # idle timeout in minutes of a daemon that is started
    role: PairRole | None = None  # None: all roles
    default_pair: Callable[[], str] = field(default=lambda: "", compare=False)  # if `options` names no pair

    @property
    def pair(self) -> str:
        """Return the requested pair, or the default pair."""
        return str(self.options.get("pair") or self.default_pair())
