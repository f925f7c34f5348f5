"""Fields of a configuration that others wrote: looked up, converted, or refused by name.

A converter raises ValueError or TypeError for what it does not take.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf_limits import MOST_LAYERS

LONGEST_TEXT = 255

T = TypeVar("T")


class Fields:
    """The fields of a configuration, looked up in several places in turn; each is converted or refused by name."""

    def __init__(self, where: str, *places: object) -> None:
        self.where = where
        for place in places:
            if not isinstance(place, Mapping):
                raise ModelError(f"{where}: expected a JSON object with fields, found {type(place).__name__}")
        self._places: list[Mapping[str, object]] = [place for place in places if isinstance(place, Mapping)]

    def get(self, name: str, convert: Callable[[Any], T], default: T) -> T:
        """Return the first value that is present and not null, or the default."""
        value = next((place[name] for place in self._places if place.get(name) is not None), None)
        if value is None:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError, OverflowError):
            raise ModelError(f"{self.where}: {name} is {str(value)[:60]!r}, which makes no sense here") from None

    def need(self, name: str, convert: Callable[[Any], T]) -> T:
        """Return a required field, converted; raise ModelError if it is missing or invalid."""
        value = self.get(name, lambda found: (convert(found),), None)
        if value is None:
            raise ModelError(f"{self.where}: {name} is missing")
        return value[0]

    def refuse(self, name: str, meaning: str, neutral: tuple[object, ...] = (False, 0, "none")) -> None:
        """Raise ModelError if the field is present anywhere and not neutral."""
        if any(place.get(name) not in (None, *neutral) for place in self._places):
            raise ModelError(f"{self.where}: {name} is set: drafters with {meaning} are not supported yet")


def as_whole(value: object) -> int:
    """A number of things, from 0 to 2^31 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError
    return value


def as_layer_count(value: object) -> int:
    """How many layers there are."""
    if not 1 <= as_whole(value) <= MOST_LAYERS:
        raise ValueError
    return as_whole(value)


def as_number(value: object) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)


def as_flag(value: object) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError
    return value


def as_text(value: object) -> str:
    """A short text that a terminal can show."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > LONGEST_TEXT:
        raise ValueError
    return value


def as_wholes(value: Any) -> tuple[int, ...]:
    """Several of them."""
    return tuple(as_whole(item) for item in value)


def as_flags(value: Any) -> tuple[bool, ...]:
    """Several of them."""
    return tuple(as_flag(item) for item in value)


def as_optional_flag(value: object) -> bool | None:
    """True or false, where the field may be missing."""
    return as_flag(value)


def as_object(value: object) -> dict[str, object]:
    """The fields of a nested object."""
    if not isinstance(value, dict):
        raise ValueError
    return value


def as_layer_kinds(value: Any) -> tuple[str, ...]:
    """What kind of attention each layer has."""
    kinds = tuple(value)
    if any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        raise ValueError
    return kinds
