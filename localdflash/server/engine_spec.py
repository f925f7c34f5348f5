"""Specification of an engine, as a value: naming one needs no code that reaches one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

PairRole = Literal["chat", "completion"]
Others = Literal["wait", "refuse", "end"]  # what becomes of answers by a pair whose place another one needs
ROLES: tuple[PairRole, ...] = ("chat", "completion")


@dataclass(frozen=True)
class EngineSpec:
    """Engine that a user asks for: fields of `localdflash.models.load_options.Options`, and which of them must hold.

    The others apply to a pair that is not there yet; one that is may have other values. `role`: what the pair is for,
    and all that changes; None: for everything. `idle`: minutes until a daemon leaves that is started for it.
    `default_pair` returns the pair where the options name none; a loaded engine makes looking for it unnecessary.
    """

    options: Mapping[str, object]
    given: Collection[str] = ()
    idle: float = 0.0
    role: PairRole | None = None
    default_pair: Callable[[], str] = field(default=lambda: "", compare=False)

    @property
    def pair(self) -> str:
        """Return the pair of the options, else the default one."""
        return str(self.options.get("pair") or self.default_pair())
