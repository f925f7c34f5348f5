"""Specification of an engine, without the code that connects to one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

PairRole = Literal["chat", "completion"]
Others = Literal["wait", "refuse", "end"]  # how to treat running answers of a pair that must be unloaded
ROLES: tuple[PairRole, ...] = ("chat", "completion")


@dataclass(frozen=True)
class EngineSpec:
    """Requested engine. `options` are fields of `localdflash.models.load_options.Options`."""

    options: Mapping[str, object]
    given: Collection[str] = ()  # options that a running engine must have; the others apply when a pair is loaded
    idle: float = 0.0  # idle timeout in minutes of a daemon that is started
    role: PairRole | None = None  # None: all roles
    default_pair: Callable[[], str] = field(default=lambda: "", compare=False)  # if `options` names no pair

    @property
    def pair(self) -> str:
        """Return the requested pair, or the default pair."""
        return str(self.options.get("pair") or self.default_pair())
