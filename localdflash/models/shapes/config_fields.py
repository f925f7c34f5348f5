"""Looks up, converts and rejects fields of other tools' configurations, without msgspec: GPU test machines lack it."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf_limits import MAX_LAYERS

NEUTRAL = (None, False, 0, "none")  # values that mean that the feature is off, like a missing field

T = TypeVar("T")
Convert = Callable[[Any], T]
Refused = Mapping[str, tuple[object, ...]]  # by field: its meaning, and its neutral values (default: `NEUTRAL`)


def converter(expected: str, *kinds: Convert[T], is_valid: Callable[[T], bool] = lambda _: True) -> Convert[T]:
    """Return a function that converts values of these types to the first type; it raises ValueError for others."""

    def convert(value: Any) -> T:
        if type(value) not in kinds or not is_valid(value):
            raise ValueError(f"expected {expected}, got {repr(value)[:60]}")
        return kinds[0](value)

    return convert


def list_of(convert: Convert[T]) -> Convert[tuple[T, ...]]:
    """Return a converter of lists."""
    return lambda value: tuple(map(convert, converter("a list", list)(value)))


as_count = converter("an integer of 0 to 2^31 - 1", int, is_valid=lambda count: 0 <= count < 2**31)
as_counts = list_of(as_count)
as_layer_count = converter(f"1 to {MAX_LAYERS} layers", int, is_valid=lambda count: 1 <= count <= MAX_LAYERS)
as_number = converter("a number that fits float32", float, int, is_valid=lambda number: abs(number) <= 1e38)
as_flag = converter("true or false", bool)
as_text = converter("one printable line", str, is_valid=lambda line: line.isprintable() and len(line) <= 300)
as_object = converter("an object", dict)


class Fields:
    """Fields of a configuration, looked up in several objects in order."""

    def __init__(self, subject: str, *objects: object) -> None:
        self.subject = subject
        self._objects: list[Mapping[str, object]] = []
        for object_ in objects:
            if not isinstance(object_, Mapping):
                raise ModelError(f"{subject}: expected a JSON object with fields, found {type(object_).__name__}")
            self._objects.append(object_)

    def get(self, name: str, convert: Convert[T], default: T) -> T:
        """Return the first value that is present and not null, converted, or the default."""
        value = next((object_[name] for object_ in self._objects if object_.get(name) is not None), None)
        if value is None:
            return default
        try:
            return convert(value)
        except ValueError as error:
            raise ModelError(f"{self.subject}: {name}: {error}; convert or download the drafter again") from None

    def need(self, name: str, convert: Convert[T]) -> T:
        """Return a required field, converted; raise ModelError if it is missing or invalid."""
        value: T | None = self.get(name, convert, None)
        if value is None:
            raise ModelError(f"{self.subject}: {name} is missing")
        return value

    def refuse(self, name: str, meaning: object, *neutral: object) -> None:
        """Raise ModelError if the field is present anywhere and not neutral."""
        if any(object_.get(name) not in (None, *(neutral or NEUTRAL)) for object_ in self._objects):
            raise ModelError(f"{self.subject}: {name}: drafters with {meaning} are not supported; use another drafter")

    def refuse_all(self, refused: Refused) -> None:
        """Raise ModelError if one of these fields is present and not neutral."""
        for name, (meaning, *neutral) in refused.items():
            self.refuse(name, meaning, *neutral)
