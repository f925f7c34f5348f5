"""General questions: the patterns of questions.toml with each of their subjects, for training or held out."""

import random
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

QUESTION_LIST = Path(__file__).with_name("questions.toml")
HELD_OUT_EVERY = 16  # one subject in 16 is held out


class Question(NamedTuple):
    """Prompt for a target, with its kind, one of `training_prompts.KINDS`; held-out ones are never trained on."""

    kind: str
    text: str
    held_out: bool
    before: tuple[str, ...] = ()  # earlier turns of the conversation, user and assistant alternating
    ids: tuple[int, ...] = ()  # whole prompt of a completion, which has no text
    number: int = 0  # in its prompt file


def questions(rng: random.Random, path: Path = QUESTION_LIST) -> Iterator[Question]:
    """Yield every question once, in random order."""
    found = [
        Question(family["kind"], pattern.format(subject), crc32(subject.encode()) % HELD_OUT_EVERY == 0)
        for family in tomllib.loads(path.read_text(encoding="utf-8"))["family"]
        for pattern, subject in product(family["patterns"], family["subjects"])
    ]
    rng.shuffle(found)
    yield from found
