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
    strips_before: bool = False  # swallows the blanks before it
    strips_after: bool = False  # swallows the blanks after it


class ModelVocabulary(Protocol):
    """Vocabulary of a model. Immutable and thread-safe; `bos_id` and `eos_id` are -1 if the model has no such token."""

    size: int  # number of token ids
    special_tokens: Sequence[SpecialToken]  # in the order of their ids
    end_ids: frozenset[int]  # tokens that end an answer
    bos_id: int
    eos_id: int
    adds_bos: bool  # whether every prompt begins with `bos_id`

    def encode(self, text: str) -> list[int]:
        """Return the ids of text; a spelled user-defined token becomes its id, a spelled control token stays text."""

    def decode_token(self, token: int, *, special: bool) -> bytes:
        """Return the bytes of one id; control tokens and the unknown token have none unless `special`."""

    def metadata(self, key: str) -> str | None:
        """Return a value of the file's metadata as text, or None."""
