"""Prompt files: one JSON line for each prompt, in the order in which they are answered.

Code and talk (general questions) are mixed, and one prompt in `HELD_OUT_EVERY` is held out: any first part is fair.
"""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from localdflash.base.errors import TrainingError
from localdflash.lab.train import code_prompts, corpus
from localdflash.lab.train.questions import Question, questions
from localdflash.lab.train.whole_file import replacing

QUESTIONS = ("function", "explain", "edit", "types", "tests", "talk", "json", "own", "chat")
COMPLETIONS = ("rest", "line", "node", "span", "open", "block")  # see `adapter_gaps`
KINDS = (*QUESTIONS, *COMPLETIONS)
TALK_SHARE = 0.3  # of the prompts: general questions, until all are used
HELD_OUT_EVERY = 25


def of_corpus(wheels: Path, seed: int) -> Iterator[Question]:
    """Yield questions about the pinned packages, downloaded into `wheels`, mixed with general questions."""
    fetched = corpus.fetch(corpus.read_list(), wheels)
    splits = {
        held_out: _with_talk(
            [list(corpus.python_files(wheel)) for package, wheel in fetched if package.held_out == held_out],
            held_out,
            seed,
        )
        for held_out in (False, True)
    }
    return alternating(splits[False], splits[True])


def of_sources(sources: dict[bool, list[str]], seed: int) -> Iterator[Question]:
    """Yield questions about given source texts, keyed by whether they are held out, mixed with general questions."""
    return alternating(*(_with_talk([sources[held_out]], held_out, seed) for held_out in (False, True)))


def alternating(training: Iterator[Question], held_out: Iterator[Question]) -> Iterator[Question]:
    """Yield questions of both splits, mixed so that any first part has its share of both."""
    for number, question in enumerate(training):
        if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1:
            yield from islice(held_out, 1)
        yield question


def _with_talk(packages: list[list[str]], held_out: bool, seed: int) -> Iterator[Question]:
    """Yield questions of one split: about the code of some packages, and general questions."""
    rng = random.Random(f"{seed}/{held_out}")
    talk = iter([q for q in questions(random.Random(seed)) if q.held_out == held_out])
    for question in code_prompts.of_packages(packages, seed):
        yield question._replace(held_out=held_out)
        if rng.random() < TALK_SHARE / (1 - TALK_SHARE):
            yield from islice(talk, 1)


def write(path: Path, prompts: Iterable[Question]) -> int:
    """Write a prompt file completely or not at all; return the number of prompts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for count, question in enumerate(prompts, 1):
            file.write(json.dumps(question._replace(number=count - 1)._asdict()) + "\n")
    return count


def read(path: Path) -> list[Question]:
    """Return the prompts of a file; TrainingError names the first invalid line."""
    prompts: list[Question] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            lists = {name: tuple(fields.get(name, ())) for name in ("before", "ids")}
            prompt = Question(**fields | lists)
            is_valid = all(map(str.strip, prompt.before)) and all(isinstance(token, int) for token in prompt.ids)
            is_valid = is_valid and (bool(prompt.ids) if prompt.kind in COMPLETIONS else bool(prompt.text.strip()))
            is_valid = is_valid and prompt.kind in KINDS and "number" in fields
        except (ValueError, TypeError, AttributeError):
            is_valid = False
        if not is_valid:
            raise TrainingError(f"{path}: line {number}: not a prompt (expected number, kind, held_out, text)")
        prompts.append(prompt)
    return prompts
