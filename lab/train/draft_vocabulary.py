"""The short draft vocabulary of a trained pair: the tokens of the target's own answers, counted.

Prompts are not counted: what the drafter must be able to propose is what the target writes.
"""

from collections.abc import Iterator
from pathlib import Path

from localdflash.base.errors import TrainingError, UsageError
from localdflash.lab.train.dataset import Dataset
from localdflash.models.shapes.short_vocabulary import ShortVocabulary, count


def answers_of(data: Dataset) -> Iterator[list[int]]:
    """The ids of each answer."""
    for row in data.examples:
        start = int(row["start"])
        yield data.tokens[start + int(row["prompt"]) : start + int(row["length"])].tolist()


def count_answers(folder: Path, vocab_size: int, size: int, ends: frozenset[int]) -> ShortVocabulary:
    """The `size` most frequent tokens of the answers that `regenerate` wrote into `folder`; end tokens are among them.

    UsageError for a size that makes no short vocabulary, TrainingError if there is nothing to count.
    """
    if size >= vocab_size:
        raise UsageError(f"--size {size}: expected less than the {vocab_size} tokens of the target's vocabulary")
    if not (folder / "examples.npy").is_file():
        raise TrainingError(f"{folder} holds no answers: run `localdflash train drafter {folder.parent}` first")
    short = count(answers_of(_load(folder)), vocab_size, size, sorted(ends))
    if not short.counted:
        raise TrainingError(f"{folder} holds no token of an answer: let the target answer more prompts")
    return short


def _load(folder: Path) -> Dataset:
    again = "remove it and run `localdflash train drafter` again"
    try:
        data = Dataset.load(folder)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder}: cannot be read: {error}; {again}") from None
    needed = max((int(row["start"]) + int(row["length"]) for row in data.examples), default=0)
    if needed > len(data.tokens):
        raise TrainingError(f"{folder}: cannot be read: {len(data.tokens)} tokens of {needed} are there; {again}")
    return data
