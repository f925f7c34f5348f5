"""FIM prompts for a target: gaps in pinned packages, each at several cursors, as if being typed.

Prompts of one gap share all but their ends, which a prefix cache reads almost for nothing.
"""

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train import adapter_corpus
from localdflash.lab.train.adapter_examples import FillExamples, FimScene, word_to_heal
from localdflash.lab.train.adapter_mixture import draw_from
from localdflash.lab.train.questions import Question
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.training_prompts import HELD_OUT_EVERY, alternating
from localdflash.text.fim_formats import FimFormat
from localdflash.text.tokenizer import Tokenizer

PROMPTS = {192: 0.3, 256: 0.3, 320: 0.2, 448: 0.15, 544: 0.05}  # tokens of a prompt, at most: short ones are cheap
CURSORS = 4  # in a hole, at most
APART = (24, 120)  # characters from one cursor to the next
OPEN_CHARACTERS = 480  # of an unfinished file in which cursors stand
ANSWERS = 25  # ids that the target answers in one hole: SmolLM2 34, and more holes than are needed do no harm


def of_corpus(
    folder: Path, target: Path, fim: FimFormat, tokens: int, seed: int, reporter: Reporter
) -> Iterator[Question]:
    """Prompts for about `tokens` ids of answers, of packages that are fetched into `folder`, in random order."""
    encoder, archives = Encoder(Tokenizer.load(target)), adapter_corpus.archives(folder)
    splits = []
    for held_out in (False, True):
        own = [archive for archive in archives if archive.held_out == held_out]
        count = tokens // ANSWERS // (HELD_OUT_EVERY if held_out else 1) + 8
        holes = list(draw_from(own, encoder, fim, count, seed, reporter, questions_of_hole))
        random.Random(seed).shuffle(holes)
        splits.append([question._replace(held_out=held_out) for question in chain.from_iterable(holes)])
    return alternating(*map(iter, splits))


def questions_of_hole(maker: FillExamples, name: str, rng: random.Random) -> list[Question]:
    """Return the prompts of a gap in one file, in the order in which it is typed."""
    scene = maker.scene(name, rng)
    most = rng.choices(list(PROMPTS), list(PROMPTS.values()))[0]
    found = []
    for cursor in cursors(scene, rng):
        word = word_to_heal(scene.text[:cursor], rng)
        prompt = maker.prompt(scene, cursor, word, maker.form, most)
        found.append(Question(scene.hole.kind, "", False, (), tuple(prompt)))
    return found


def cursors(scene: FimScene, rng: random.Random) -> list[int]:
    """Return the cursor positions of a gap: its start, and positions reached while it is typed."""
    hole = scene.hole
    end = min(hole.start + OPEN_CHARACTERS, len(scene.text)) if hole.is_open else hole.end
    found = [hole.start]
    while len(found) < CURSORS and (cursor := found[-1] + rng.randint(*APART)) < end:
        found.append(cursor)
    return found
