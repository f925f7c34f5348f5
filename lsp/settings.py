"""What a client says of itself in `initializationOptions`."""

from dataclasses import dataclass
from typing import Any

SHORTEST_DEADLINE, LONGEST_DEADLINE = 50, 10_000  # ms


@dataclass(frozen=True)
class Settings:
    """`push`: the client shows how an answer grows. `deadline_ms`: after which the others get what is there."""

    push: bool = False
    deadline_ms: int = 350

    @classmethod
    def of(cls, options: Any) -> "tuple[Settings, list[str]]":
        """The settings, and a line for each option that is not understood and left at its default."""
        given = options if isinstance(options, dict) else getattr(options, "__dict__", None) or {}
        settings, wrong = cls(), []
        push, deadline = given.get("push", settings.push), given.get("deadlineMs", settings.deadline_ms)
        if not isinstance(push, bool):
            wrong.append(f"initializationOptions.push: expected true or false, found {push!r}")
            push = settings.push
        if isinstance(deadline, bool) or not isinstance(deadline, int | float):
            wrong.append(f"initializationOptions.deadlineMs: expected a number, found {deadline!r}")
            deadline = settings.deadline_ms
        return cls(push, round(min(max(deadline, SHORTEST_DEADLINE), LONGEST_DEADLINE))), wrong
