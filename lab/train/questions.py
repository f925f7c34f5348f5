"""General questions for training and measuring: each pattern of questions.toml combined with each subject."""

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
    """Prompt for a target; `kind` is one of `training_prompts.KINDS`. Held-out prompts are never trained on."""

    kind: str
    text: str
    held_out: bool
    before: tuple[str, ...] = ()  # earlier turns of the conversation, user and assistant alternating
    ids: tuple[int, ...] = ()  # whole prompt of a completion, which has no text
    number: int = 0  # index in the prompt file


def questions(rng: random.Random, path: Path = QUESTION_LIST) -> Iterator[Question]:
    """Yield every question once, in random order."""
    all_questions = [
        Question(family["kind"], pattern.format(subject), crc32(subject.encode()) % HELD_OUT_EVERY == 0)
        for family in tomllib.loads(path.read_text(encoding="utf-8"))["family"]
        for pattern, subject in product(family["patterns"], family["subjects"])
    ]
    rng.shuffle(all_questions)
    yield from all_questions
