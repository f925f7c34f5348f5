"""The prompts that a target is to answer: one JSON line each, made once, in the order in which they are answered.

Code and talk are mixed, and every so many prompts one is held out, so that any first part of the file is a fair
sample of the whole. A line: number, kind, held_out, text.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from localdflash.errors import TrainingError
from localdflash.train import code_prompts, corpus
from localdflash.train.questions import questions

KINDS = ("function", "explain", "edit", "types", "tests", "talk", "json")
TALK_SHARE = 0.3  # of the prompts, as long as there are questions left
HELD_OUT_EVERY = 25


@dataclass(frozen=True)
class Prompt:
    """One question; `held_out` ones measure and are never trained on."""

    number: int
    kind: str
    held_out: bool
    text: str


def build(wheels: Path, count: int, seed: int) -> Iterator[Prompt]:
    """The first `count` prompts, fewer where corpus and questions give no more; fetches the corpus into `wheels`."""
    fetched = corpus.fetch(corpus.read_list(), wheels)
    streams = {held_out: _mixed(fetched, held_out, seed) for held_out in (False, True)}
    for number in range(count):
        held_out = number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        found = next(streams[held_out], None)
        if found is None and held_out:
            held_out, found = False, next(streams[False], None)
        if found is None:
            return
        yield Prompt(number, found[0], held_out, found[1])


def _mixed(fetched: list[tuple[corpus.Package, Path]], held_out: bool, seed: int) -> Iterator[tuple[str, str]]:
    """Kind and text of questions about code and of general ones, of one split."""
    rng = random.Random(f"{seed}/{held_out}")
    talk = iter([(q.kind, q.text) for q in questions(random.Random(seed)) if q.held_out == held_out])
    sources = [list(corpus.python_files(wheel)) for package, wheel in fetched if package.held_out == held_out]
    code = ((asked.kind, asked.text) for asked in code_prompts.of_packages(sources, seed))
    for found in code:
        yield found
        if rng.random() < TALK_SHARE / (1 - TALK_SHARE):
            yield from islice(talk, 1)


def write(path: Path, found: Iterator[Prompt]) -> int:
    """Write a prompt file as a whole or not at all; how many prompts it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    count = 0
    with part.open("w", encoding="utf-8") as file:
        for prompt in found:
            file.write(json.dumps(asdict(prompt)) + "\n")
            count += 1
    part.replace(path)
    return count


def read(path: Path) -> list[Prompt]:
    """The prompts of a file; TrainingError names the first line that is none."""
    prompts: list[Prompt] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            prompt = Prompt(**json.loads(line))
            fine = prompt.kind in KINDS and bool(prompt.text.strip())
        except (ValueError, TypeError, AttributeError):
            fine = False
        if not fine:
            raise TrainingError(f"{path}: line {number} is no prompt (number, kind, held_out, text)")
        prompts.append(prompt)
    return prompts
