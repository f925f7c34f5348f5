"""The settings that a client sends in `initializationOptions`."""

from dataclasses import dataclass
from types import UnionType
from typing import Any

SHORTEST_DEADLINE, LONGEST_DEADLINE = 50, 10_000  # ms


@dataclass(frozen=True)
class LspSettings:
    """What a client wants. `push`: it shows how an answer grows. `status`: it shows `didChangeStatus`, a message of
    ours. `next_edit`: it shows where the same change may follow, see `next_edit`.

    `deadline_ms`: after this time the part of an answer that is there is returned.
    """

    push: bool = False
    status: bool = False
    deadline_ms: int = 350
    next_edit: bool = False

    @classmethod
    def of(cls, options: Any) -> "tuple[LspSettings, list[str]]":
        """The settings, and a line for each option that is not understood and keeps its default."""
        given = options if isinstance(options, dict) else getattr(options, "__dict__", None) or {}
        wrong: list[str] = []

        def known(name: str, kind: type | UnionType, expected: str, default: Any) -> Any:
            value = given.get(name, default)
            if isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool):
                return value
            wrong.append(f"initializationOptions.{name}: expected {expected}, found {value!r}")
            return default

        switches = ("push", "status", "nextEdit")
        push, status, next_edit = (known(name, bool, "true or false", False) for name in switches)
        deadline = known("deadlineMs", int | float, "a number", cls.deadline_ms)
        deadline = round(min(max(SHORTEST_DEADLINE, deadline), LONGEST_DEADLINE))
        return cls(push, status, deadline, next_edit), wrong
