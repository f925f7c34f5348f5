"""Fields of a configuration that others wrote: looked up, and converted or refused by name."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from localdflash.base.errors import ModelError
from localdflash.base.files.strict_toml import listed, number, one_of, whole
from localdflash.models.weights.gguf_limits import MOST_LAYERS

NEUTRAL = (None, False, 0, "none")  # values that mean the same as a missing field

T = TypeVar("T")
Refused = Mapping[str, tuple[object, ...]]  # by field: its meaning, and its neutral values if those are not `NEUTRAL`


class Fields:
    """Fields of a configuration, looked up in several objects in order."""

    def __init__(self, where: str, *places: object) -> None:
        self.where = where
        self._places: list[Mapping[str, object]] = []
        for place in places:
            if not isinstance(place, Mapping):
                raise ModelError(f"{where}: expected a JSON object with fields, found {type(place).__name__}")
            self._places.append(place)

    def get(self, name: str, convert: Callable[[Any], T], default: T) -> T:
        """Return the first value that is present and not null, or the default."""
        value = next((place[name] for place in self._places if place.get(name) is not None), None)
        if value is None:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.where}: {name}: {error}; convert or download the drafter again") from None

    def need(self, name: str, convert: Callable[[Any], T]) -> T:
        """Return a required field, converted; raise ModelError if it is missing or invalid."""
        value = self.get(name, lambda found: (convert(found),), None)
        if value is None:
            raise ModelError(f"{self.where}: {name} is missing")
        return value[0]

    def refuse(self, name: str, meaning: object, *neutral: object) -> None:
        """Raise ModelError if the field is present anywhere and not neutral."""
        if any(place.get(name) not in (None, *(neutral or NEUTRAL)) for place in self._places):
            raise ModelError(f"{self.where}: {name}: drafters with {meaning} are not supported; use another drafter")

    def refuse_all(self, refused: Refused) -> None:
        """Raise ModelError if one of these fields is present and not neutral."""
        for name, (meaning, *neutral) in refused.items():
            self.refuse(name, meaning, *neutral)


def as_flag(value: object) -> bool:
    """Take true or false."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def as_object(value: object) -> dict[str, object]:
    """Take a nested object."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


as_whole = whole(0, 2**31 - 1)
as_layer_count = whole(1, MOST_LAYERS)
as_number = number(-1e38, 1e38)
as_wholes, as_flags = listed(as_whole), listed(as_flag)
as_layer_kinds = listed(one_of("full_attention", "sliding_attention"))
