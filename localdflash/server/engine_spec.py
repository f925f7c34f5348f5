"""Specification of an engine, without the code that connects to one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

PairRole = Literal["chat", "completion"]
Others = Literal["wait", "refuse", "end"]  # how to treat running answers of a pair that must be unloaded
ROLES: tuple[PairRole, ...] = ("chat", "completion")


@dataclass(frozen=True)
class EngineSpec:
    """Requested engine: `options` are fields of `localdflash.models.load_options.Options`.

    A running engine must match the options named in `given`; the other options apply only when a pair is loaded.
    `role` is the role of the pair (None: all roles). `idle` is the idle timeout in minutes of a daemon started for this
    request. `default_pair` returns the pair to load if `options` names none.
    """

    options: Mapping[str, object]
    given: Collection[str] = ()
    idle: float = 0.0
    role: PairRole | None = None
    default_pair: Callable[[], str] = field(default=lambda: "", compare=False)

    @property
    def pair(self) -> str:
        """Return the requested pair, or the default pair."""
        return str(self.options.get("pair") or self.default_pair())
