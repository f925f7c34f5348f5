"""Looks up, converts and refuses fields of configurations that other tools write."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from localdflash.base.errors import ModelError
from localdflash.base.files.strict_toml import array_of, integer, number, one_of
from localdflash.models.weights.gguf_limits import MAX_LAYERS

NEUTRAL = (None, False, 0, "none")  # values that mean the same as a missing field

T = TypeVar("T")
Refused = Mapping[str, tuple[object, ...]]  # by field: its meaning, and its neutral values (default: `NEUTRAL`)


class Fields:
    """Fields of a configuration, looked up in several objects in order."""

    def __init__(self, subject: str, *objects: object) -> None:
        self.subject = subject
        self._objects: list[Mapping[str, object]] = []
        for object_ in objects:
            if not isinstance(object_, Mapping):
                raise ModelError(f"{subject}: expected a JSON object with fields, found {type(object_).__name__}")
            self._objects.append(object_)

    def get(self, name: str, convert: Callable[[Any], T], default: T) -> T:
        """Return the first value that is present and not null, or the default."""
        value = next((object_[name] for object_ in self._objects if object_.get(name) is not None), None)
        if value is None:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError) as error:
            raise ModelError(f"{self.subject}: {name}: {error}; convert or download the drafter again") from None

    def need(self, name: str, convert: Callable[[Any], T]) -> T:
        """Return a required field, converted; raise ModelError if it is missing or invalid."""
        value = self.get(name, lambda found: (convert(found),), None)
        if value is None:
            raise ModelError(f"{self.subject}: {name} is missing")
        return value[0]

    def refuse(self, name: str, meaning: object, *neutral: object) -> None:
        """Raise ModelError if the field is present anywhere and not neutral."""
        if any(object_.get(name) not in (None, *(neutral or NEUTRAL)) for object_ in self._objects):
            raise ModelError(f"{self.subject}: {name}: drafters with {meaning} are not supported; use another drafter")

    def refuse_all(self, refused: Refused) -> None:
        """Raise ModelError if one of these fields is present and not neutral."""
        for name, (meaning, *neutral) in refused.items():
            self.refuse(name, meaning, *neutral)


def as_flag(value: object) -> bool:
    """Convert true or false."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def as_object(value: object) -> dict[str, object]:
    """Convert a nested object."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


as_integer = integer(0, 2**31 - 1)
as_layer_count = integer(1, MAX_LAYERS)
as_number = number(-1e38, 1e38)
as_integers, as_flags = array_of(as_integer), array_of(as_flag)
as_layer_kinds = array_of(one_of("full_attention", "sliding_attention"))
