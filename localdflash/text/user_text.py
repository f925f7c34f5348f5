r"""User text for chat templates that stays distinguishable from template text in the rendered prompt.

A `Disguise` replaces every character of user text by a stand-in from Unicode's private-use planes. Disguised text is a
`UserText`, whose methods work on the plain text and disguise their results.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, SupportsIndex

from localdflash.base.errors import UsageError

_PRIVATE_USE_PLANES = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_STAND_INS = re.compile("([\U000f0000-\U000ffffd\U00100000-\U0010fffd]+)")


class PromptStretch(NamedTuple):
    """Part of a rendered prompt, either from the template or from a user."""

    text: str
    from_user: bool  # whether a user or the model wrote it, so that markers in it stay text


class Disguise:
    """Two-way mapping between characters and stand-ins, for one conversation."""

    def __init__(self) -> None:
        self._unused = iter(code for plane in _PRIVATE_USE_PLANES for code in plane)
        self._stand_ins = _StandIns(self._assign_stand_in)
        self._characters: dict[int, int] = {}  # character of each stand-in

    def hide(self, text: str) -> "UserText":
        """Return the text disguised; UsageError if the conversation has over 131 068 different characters."""
        return UserText(text.translate(self._stand_ins), text, self)

    def hide_all(self, value: object) -> object:
        """Return a value with every string in it hidden, keys of dictionaries included."""
        if isinstance(value, dict):
            return {self.hide_all(key): self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.hide_all, value))
        return self.hide(value) if isinstance(value, str) else value

    def reveal(self, text: str) -> str:
        """Return the text with each stand-in replaced by its character."""
        return text.translate(self._characters)

    def recognise(self, value: object) -> object:
        """Return the `UserText` of a string of stand-ins alone; other values are returned unmodified."""
        if type(value) is str and _STAND_INS.fullmatch(value):
            return UserText(value, self.reveal(value), self)
        return value

    def split_prompt(self, rendered: str) -> list[PromptStretch]:
        """Split a rendered prompt into template text and user text."""
        parts = _STAND_INS.split(rendered)  # at odd indices user text
        return [PromptStretch(self.reveal(part), from_user=i % 2 == 1) for i, part in enumerate(parts) if part]

    def to_json(self, value: object, **options: object) -> "UserText":
        """Return the JSON of a value that contains user text; the whole JSON counts as user text."""
        return self.hide(json.dumps(self.reveal_all(value), **options))  # type: ignore[arg-type]  # the template's options

    def reveal_all(self, value: object) -> object:
        """Return a value with every string in it revealed, keys of dictionaries included."""
        if isinstance(value, dict):
            return {self.reveal_all(key): self.reveal_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self.reveal_all, value))
        return self.reveal(value) if isinstance(value, str) else value

    def _assign_stand_in(self, character: int) -> int:
        stand_in = next(self._unused, None)
        if stand_in is None:
            raise UsageError("chat: too many different characters (expected at most 131 068); shorten the messages")
        self._characters[stand_in] = character
        return stand_in


class _StandIns(dict[int, int]):  # assigned when `str.translate` looks a new character up
    def __init__(self, assign: Callable[[int], int]) -> None:
        super().__init__()
        self._assign = assign

    def __missing__(self, key: int) -> int:
        self[key] = value = self._assign(key)
        return value


class UserText(str):
    """Disguised text with the behaviour of the plain text."""

    __slots__ = ("_disguise", "_plain")
    _disguise: Disguise
    _plain: str

    def __new__(cls, hidden: str, plain: str, disguise: Disguise) -> "UserText":
        """Create user text from its hidden and plain forms; called by `Disguise`."""
        text = super().__new__(cls, hidden)
        text._plain, text._disguise = plain, disguise
        return text

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        return hash(self._plain)

    def __getitem__(self, key: SupportsIndex | slice) -> "UserText":
        return self._disguise.hide(self._plain[key])

    def __iter__(self) -> Iterator[str]:
        return map(self._disguise.hide, self._plain)


def _on_plain_text(name: str) -> Callable[..., object]:
    method = getattr(str, name)

    def on_plain_text(self: UserText, *args: object, **kwargs: object) -> object:
        return self._disguise.hide_all(method(self._plain, *map(self._disguise.reveal_all, args), **kwargs))

    on_plain_text.__name__ = name
    return on_plain_text


# Methods that only copy characters (`+`, `*`, `join`) need no wrapper, and templates have no `encode`.
_ON_PLAIN_TEXT = """
    __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ capitalize casefold count endswith find index
    isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper lower lstrip partition
    removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase
    title upper
"""
for _name in _ON_PLAIN_TEXT.split():
    setattr(UserText, _name, _on_plain_text(_name))
