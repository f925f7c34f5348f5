"""The sampling settings of a chat, by the names that `/set` takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from localdflash.errors import UsageError
from localdflash.files.strict_toml import did_you_mean


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of the next answer. `max_tokens` 0 means all the room that is left in the context."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 0
    thinking: bool = True
    draft: bool = True

    def changed(self, name: str, value: str) -> Self:
        """The settings with one of them set from what a user typed; UsageError says what is allowed."""
        if name not in _READ:
            raise UsageError(f"no setting {name!r}{did_you_mean(name, _READ) or ': one of ' + ', '.join(_READ)}")
        expected, read = _READ[name]
        try:
            return replace(self, **{name: read(value.strip())})
        except ValueError:
            raise UsageError(f"{name}: expected {expected}, found {value.strip()!r}") from None


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        found = float(value)
        if not (math.isfinite(found) and low <= found <= high):
            raise ValueError
        return found

    return read


def _whole(high: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        found = int(value)
        if not 0 <= found <= high:
            raise ValueError
        return found

    return read


def _seed(value: str) -> int | None:
    return None if value in ("none", "off") else _whole(2**63 - 1)(value)


def _switch(value: str) -> bool:
    if value.lower() not in ("on", "off"):
        raise ValueError
    return value.lower() == "on"


_READ: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temperature": ("a number from 0 to 10", _number(0, 10)),
    "top_k": ("a whole number, 0 for all", _whole(2**31 - 1)),
    "top_p": ("a number above 0, up to 1", _number(1e-6, 1)),
    "min_p": ("a number from 0 to 1", _number(0, 1)),
    "repetition_penalty": ("a number from 0.1 to 10", _number(0.1, 10)),
    "seed": ("a whole number, or none", _seed),
    "max_tokens": ("a whole number, 0 for all the room there is", _whole(2**31 - 1)),
    "thinking": ("on or off", _switch),
    "draft": ("on or off", _switch),
}
SETTINGS = tuple(_READ)
