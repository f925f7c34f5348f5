"""Pair, options and role that a client requests from the daemon."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

PairRole = Literal["chat", "completion"]
# If the pair to unload has requests: wait for them; refuse with ModelBusy if it is answering a chat; or end them.
EvictionPolicy = Literal["wait", "refuse", "end"]
ROLES: tuple[PairRole, ...] = ("chat", "completion")


@dataclass(frozen=True)
class EngineSpec:
    """Requested pair, options and role. `options` are fields of `localdflash.models.load_options.Options`."""

    options: Mapping[str, object]
    given: Collection[str] = ()  # options that a loaded pair must match; the others only apply to a new load
    idle: float = 0.0  # idle timeout, in minutes, of a daemon that the client starts
    role: PairRole | None = None  # None: all roles
    default_pair: Callable[[], str] = field(default=lambda: "", compare=False)  # called if `options` names no pair

    @property
    def pair(self) -> str:
        """Return the requested pair, or the default pair."""
        return str(self.options.get("pair") or self.default_pair())
