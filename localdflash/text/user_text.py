r"""User text that a chat template can work with and that stays recognisable in what the template makes of it.

A `Disguise` replaces every character of user text by a stand-in from Unicode's two supplementary private-use planes,
one for one. Whatever a template then does with the text (cut, join, repeat, reorder), each character of the result
still says where it came from, and nothing that a user wrote can spell a marker on the way.

So that templates notice nothing, the disguised text is a `UserText`: its methods and comparisons work on the plain
text and disguise what they return. `content.split("</think>")`, `"x" in content`, `content | trim` do what they do for
ordinary strings. Joined with template text (`"user\n" + content`) it becomes an ordinary string with stand-ins inside;
methods called on that see stand-ins instead of letters, which can leave a blank untrimmed but reveals nothing.
`Disguise.recognise` restores what a macro or a sum returned as an ordinary string although it is all user text.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, SupportsIndex

from localdflash.base.errors import UsageError

_PLANES = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_STAND_INS = re.compile("([\U000f0000-\U000ffffd\U00100000-\U0010fffd]+)")


class PromptStretch(NamedTuple):
    """A stretch of a rendered prompt, and whether a user wrote it."""

    text: str
    from_user: bool


class Disguise:
    """One conversation's two-way mapping between characters and stand-ins."""

    def __init__(self) -> None:
        self._free = iter(code for plane in _PLANES for code in plane)
        self._stand_ins = _OnDemand(self._take)
        self._characters: dict[int, int] = {}

    def hide(self, text: str) -> "UserText":
        """The text in stand-ins; UsageError beyond 131 068 different characters."""
        return UserText(text.translate(self._stand_ins), text, self)

    def hide_all(self, value: object) -> object:
        """A value with every text inside it hidden, keys of dictionaries included."""
        if isinstance(value, dict):
            return {self.hide_all(key): self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return self.hide(value) if isinstance(value, str) else value

    def reveal(self, text: str) -> str:
        """The text with each stand-in replaced by its character."""
        return text.translate(self._characters)

    def recognise(self, value: object) -> object:
        """The `UserText` of a string of nothing but stand-ins; any other value is returned as it is."""
        if type(value) is str and _STAND_INS.fullmatch(value):
            return UserText(value, self.reveal(value), self)
        return value

    def pieces(self, rendered: str) -> list[PromptStretch]:
        """A rendered prompt cut where template text and user text meet."""
        parts = _STAND_INS.split(rendered)
        return [PromptStretch(self.reveal(part), bool(i % 2)) for i, part in enumerate(parts) if part]

    def to_json(self, value: object, **options: object) -> "UserText":
        """JSON of a value with user text anywhere inside; all of it counts as user text."""
        return self.hide(json.dumps(self._plain(value), **options))  # type: ignore[arg-type]  # the template's options

    def _plain(self, value: object) -> object:
        if isinstance(value, str):
            return self.reveal(value)
        if isinstance(value, list | tuple):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            return {self._plain(key): self._plain(item) for key, item in value.items()}
        return value

    def _take(self, character: int) -> int:
        stand_in = next(self._free, None)
        if stand_in is None:
            raise UsageError("chat: the messages use more than 131 068 different characters; send less of them")
        self._characters[stand_in] = character
        return stand_in


class _OnDemand(dict[int, int]):
    def __init__(self, take: Callable[[int], int]) -> None:
        super().__init__()
        self._take = take

    def __missing__(self, key: int) -> int:
        self[key] = value = self._take(key)
        return value


class UserText(str):
    """Disguised text that behaves as the plain text does."""

    __slots__ = ("_disguise", "_plain")
    _disguise: Disguise
    _plain: str

    def __new__(cls, hidden: str, plain: str, disguise: Disguise) -> "UserText":
        """Both spellings of the same text; `Disguise.hide` makes them."""
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
        plain = [_reveal(self._disguise, value) for value in args]
        return _hide(self._disguise, method(self._plain, *plain, **kwargs))

    on_plain_text.__name__ = name
    return on_plain_text


def _reveal(disguise: Disguise, value: object) -> object:
    if isinstance(value, tuple):
        return tuple(_reveal(disguise, item) for item in value)
    return disguise.reveal(value) if isinstance(value, str) else value


def _hide(disguise: Disguise, value: object) -> object:
    if isinstance(value, str):
        return disguise.hide(value)
    if isinstance(value, list | tuple):
        return type(value)(_hide(disguise, item) for item in value)
    return value


# Not among them: what only copies characters (`+`, `*`, `join`) is right as it is, and templates get no `encode`.
_ON_PLAIN_TEXT = """
    __contains__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__ capitalize casefold count endswith find index
    isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper lower lstrip partition
    removeprefix removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase
    title upper
"""
for _name in _ON_PLAIN_TEXT.split():
    setattr(UserText, _name, _on_plain_text(_name))
