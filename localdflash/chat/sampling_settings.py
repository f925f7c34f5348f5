"""Sampling settings of a chat, and their parsing from the arguments of `/set`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from localdflash.base.errors import UsageError, did_you_mean
from localdflash.engine.sampling_params import SamplingParams

ANSWER_SHARE = 4  # the default of `max_tokens` is 1/4 of the context
AUTO = "auto"
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """Settings of the next answer. None: a default, see `with_defaults`; `max_tokens` 0 means up to the context."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    thinking: bool = True
    draft: bool = True

    def with_defaults(self, sampling: Mapping[str, float], context: int) -> Self:
        """Return the settings with defaults for None: the model's `sampling`, and `max_tokens` from `context`."""
        defaults = asdict(SamplingParams()) | {"max_tokens": context // ANSWER_SHARE} | dict(sampling)
        unset = {name: defaults[name] for name in (*_SAMPLING, "max_tokens") if getattr(self, name) is None}
        return replace(self, **unset)

    def with_value(self, name: str, value: str) -> Self:
        """Return the settings with `name` set to `value`, as the user typed it; UsageError if it is invalid."""
        if name not in _PARSERS:
            raise UsageError(f"no setting {name!r}{did_you_mean(name, _PARSERS) or ': one of ' + ', '.join(_PARSERS)}")
        expected, read = _PARSERS[name]
        try:
            return replace(self, **{name: read(value.strip())})
        except (ValueError, KeyError):
            raise UsageError(f"{name}: expected {expected}, got {value.strip()!r}") from None

    def format_value(self, name: str) -> str:
        """Return the value of a setting as `with_value` accepts it."""
        value = getattr(self, name)
        if value is None:
            return "none" if name == "seed" else AUTO
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value)


def _number_parser(
    kind: type[float], low: float, high: float, unset: Sequence[str] = (AUTO,)
) -> Callable[[str], float | None]:
    """Return a parser of numbers from `low` to `high`; for a word in `unset` it returns None."""

    def read(value: str) -> float | None:
        if value.lower() in unset:
            return None
        number = kind(value)
        if not low <= number <= high:  # also true for NaN
            raise ValueError
        return number

    return read


def _parse_switch(value: str) -> bool:
    return {"on": True, "off": False}[value.lower()]


_PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "temperature": ("a number from 0 to 10, or auto", _number_parser(float, 0, 10)),
    "top_k": ("a whole number, 0 for all, or auto", _number_parser(int, 0, 2**31 - 1)),
    "top_p": ("a number above 0, up to 1, or auto", _number_parser(float, 1e-6, 1)),
    "min_p": ("a number from 0 to 1, or auto", _number_parser(float, 0, 1)),
    "repetition_penalty": ("a number from 0.1 to 10, or auto", _number_parser(float, 0.1, 10)),
    "seed": ("a whole number, or none", _number_parser(int, 0, 2**63 - 1, ("none", "off"))),
    "max_tokens": ("a whole number, 0 for no limit, or auto", _number_parser(int, 0, 2**31 - 1)),
    "thinking": ("on or off", _parse_switch),
    "draft": ("on or off", _parse_switch),
}
SETTINGS = tuple(_PARSERS)
