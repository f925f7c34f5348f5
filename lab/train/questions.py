"""General questions: the patterns of questions.toml filled with its subjects, each for training or held out."""

import random
import tomllib
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

QUESTION_LIST = Path(__file__).with_name("questions.toml")
HELD_OUT_SHARE = 16  # one subject in so many is never trained on


class Question(NamedTuple):
    """Prompt for a target, with its kind, one of `training_prompts.KINDS`; held-out ones are never trained on."""

    kind: str
    text: str
    held_out: bool
    before: tuple[str, ...] = ()  # earlier turns of its conversation, the user's and the answers in turn
    ids: tuple[int, ...] = ()  # of a completion, which has no text: its whole prompt
    number: int = 0  # in its prompt file


def questions(rng: random.Random, path: Path = QUESTION_LIST) -> Iterator[Question]:
    """Every question once, in a random order."""
    found = [
        Question(family["kind"], pattern.format(subject), crc32(subject.encode()) % HELD_OUT_SHARE == 0)
        for family in tomllib.loads(path.read_text(encoding="utf-8"))["family"]
        for pattern, subject in product(family["patterns"], family["subjects"])
    ]
    rng.shuffle(found)
    yield from found
