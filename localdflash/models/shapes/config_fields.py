"""Looks up, converts and refuses fields of configurations that other tools write."""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from localdflash.base.convert import convert
from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf_limits import MAX_LAYERS

NEUTRAL = (None, False, 0, "none")  # values that mean the same as a missing field

T = TypeVar("T")
Refused = Mapping[str, tuple[object, ...]]  # by field: its meaning, and its neutral values (default: `NEUTRAL`)
Object = dict[str, object]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
LayerCount = Annotated[int, Meta(ge=1, le=MAX_LAYERS)]
Counts = tuple[Count, ...]
Number = Annotated[float, Meta(ge=-1e38, le=1e38)]


class Fields:
    """Fields of a configuration, looked up in several objects in order."""

    def __init__(self, subject: str, *objects: object) -> None:
        self.subject = subject
        self._objects: list[Mapping[str, object]] = []
        for object_ in objects:
            if not isinstance(object_, Mapping):
                raise ModelError(f"{subject}: expected a JSON object with fields, found {type(object_).__name__}")
            self._objects.append(object_)

    def get(self, name: str, kind: Any, default: T) -> T:
        """Return the first value that is present and not null, converted to a type, or the default."""
        value = next((object_[name] for object_ in self._objects if object_.get(name) is not None), None)
        if value is None:
            return default
        try:
            converted: T = convert(value, kind, f"{self.subject}: {name}")
            return converted
        except ModelError as error:
            raise ModelError(f"{error}; convert or download the drafter again") from None

    def need(self, name: str, kind: Any) -> Any:
        """Return a required field, converted; raise ModelError if it is missing or invalid."""
        value: Any = self.get(name, kind, None)
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
