"""Prompt files: one JSON line for each prompt, in the order in which they are answered.

Code and talk are mixed, and every so many prompts one is held out, so that any first part is a fair sample.
"""

import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from localdflash.base.errors import TrainingError
from localdflash.lab.train import code_prompts, corpus
from localdflash.lab.train.questions import Question, questions

QUESTIONS = ("function", "explain", "edit", "types", "tests", "talk", "json", "own", "chat")
COMPLETIONS = ("rest", "line", "node", "span", "open", "block")  # see `adapter_holes`
KINDS = (*QUESTIONS, *COMPLETIONS)
TALK_SHARE = 0.3  # of the prompts, as long as there are questions left
HELD_OUT_EVERY = 25


def of_corpus(wheels: Path, seed: int) -> Iterator[Question]:
    """Questions on the pinned packages, which are fetched into `wheels`, mixed with general ones."""
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
    """Questions on source texts of one's own, by whether they are held out, mixed with general ones."""
    return alternating(*(_with_talk([sources[held_out]], held_out, seed) for held_out in (False, True)))


def alternating(training: Iterator[Question], held_out: Iterator[Question]) -> Iterator[Question]:
    """Questions of both splits, so that any first part of them has its share of either."""
    for number, question in enumerate(training):
        if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1:
            yield from islice(held_out, 1)
        yield question


def _with_talk(packages: list[list[str]], held_out: bool, seed: int) -> Iterator[Question]:
    """Questions about the code of some packages and general ones, of one split."""
    rng = random.Random(f"{seed}/{held_out}")
    talk = iter([q for q in questions(random.Random(seed)) if q.held_out == held_out])
    for asked in code_prompts.of_packages(packages, seed):
        yield asked._replace(held_out=held_out)
        if rng.random() < TALK_SHARE / (1 - TALK_SHARE):
            yield from islice(talk, 1)


def write(path: Path, found: Iterable[Question]) -> int:
    """Write a prompt file as a whole or not at all; how many prompts it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    count = 0
    with part.open("w", encoding="utf-8") as file:
        for count, question in enumerate(found, 1):
            file.write(json.dumps(question._replace(number=count - 1)._asdict()) + "\n")
    part.replace(path)
    return count


def read(path: Path) -> list[Question]:
    """The prompts of a file; TrainingError names the first line that is none."""
    prompts: list[Question] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(line)
            lists = {name: tuple(found.get(name, ())) for name in ("before", "ids")}
            prompt = Question(**found | lists)
            fine = all(map(str.strip, prompt.before)) and all(isinstance(token, int) for token in prompt.ids)
            fine = fine and (bool(prompt.ids) if prompt.kind in COMPLETIONS else bool(prompt.text.strip()))
            fine = fine and prompt.kind in KINDS and "number" in found
        except (ValueError, TypeError, AttributeError):
            fine = False
        if not fine:
            raise TrainingError(f"{path}: line {number} is no prompt (number, kind, held_out, text)")
        prompts.append(prompt)
    return prompts
