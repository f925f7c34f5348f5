"""The vocabulary of a model: its tokens, which of them are special, and which of them end an answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class SpecialToken:
    """A token that is not ordinary text: a control token, one defined by the model's author, or the unknown token."""

    id: int
    text: str
    is_control: bool = False
    is_user_defined: bool = False
    strips_before: bool = False  # swallows the blanks in front of it
    strips_after: bool = False


class ModelVocabulary(Protocol):
    """What a tokenizer needs of a model's vocabulary. Immutable; several threads may use it at once."""

    @property
    def size(self) -> int:
        """Return the number of token ids."""

    @property
    def special_tokens(self) -> Sequence[SpecialToken]:
        """Return the special tokens, by id."""

    @property
    def end_ids(self) -> frozenset[int]:
        """Return the ids that end an answer."""

    @property
    def bos_id(self) -> int:
        """Return the id of the token that begins a text; -1 if there is none."""

    @property
    def eos_id(self) -> int:
        """Return the id of the token that ends a text; -1 if there is none."""

    @property
    def adds_bos(self) -> bool:
        """Return whether the model expects `bos_id` in front of every prompt."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which control tokens are ordinary characters and user-defined tokens are not."""

    def decode_token(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of one id; those of control tokens only if `special`."""

    def metadata(self, key: str) -> str | None:
        """Return a value of the file's metadata as text, or None."""
