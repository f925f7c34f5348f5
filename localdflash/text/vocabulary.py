"""Interface of a model's vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class SpecialToken:
    """Token that is not ordinary text: a control token, a user-defined token, or the unknown token."""

    id: int
    text: str
    is_control: bool = False
    is_user_defined: bool = False
    strips_before: bool = False  # swallows the blanks in front of it
    strips_after: bool = False


class ModelVocabulary(Protocol):
    """Vocabulary that a tokenizer needs. Immutable and thread-safe; an id of -1 means that there is none."""

    size: int  # token ids
    special_tokens: Sequence[SpecialToken]  # by id
    end_ids: frozenset[int]  # tokens that end an answer
    bos_id: int
    eos_id: int
    adds_bos: bool  # whether every prompt begins with `bos_id`

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which control tokens are ordinary characters and user-defined tokens are not."""

    def decode_token(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of one id; those of control tokens only if `special`."""

    def metadata(self, key: str) -> str | None:
        """Return a value of the file's metadata as text, or None."""
