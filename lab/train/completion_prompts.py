"""FIM prompts for a target: gaps in pinned packages, each at several cursor positions, as if the gap was being typed.

The prompts of one gap differ only at their ends, so the prefix cache makes them cheap.
"""

import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train import adapter_corpus
from localdflash.lab.train.adapter_examples import FimExampleSampler, FimScene, word_to_heal
from localdflash.lab.train.adapter_mixture import sample_packages
from localdflash.lab.train.questions import Question
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.training_prompts import HELD_OUT_EVERY, alternating
from localdflash.text.fim_formats import FimFormat
from localdflash.text.tokenizer import Tokenizer

PROMPTS = {192: 0.3, 256: 0.3, 320: 0.2, 448: 0.15, 544: 0.05}  # maximum tokens of a prompt -> share of the prompts
MAX_CURSORS = 4  # per gap
CURSOR_DISTANCE = (24, 120)  # minimum and maximum characters from one cursor to the next
OPEN_CHARS = 480  # length of the part of an open gap in which cursors are placed
ANSWER_TOKENS = 25  # estimated per gap; SmolLM2 answers with 34, but too many gaps do no harm


def of_corpus(
    folder: Path, target: Path, fim: FimFormat, tokens: int, seed: int, reporter: Reporter
) -> Iterator[Question]:
    """Yield prompts for about `tokens` answer tokens, in random order, from packages downloaded into `folder`."""
    encoder, archives = Encoder(Tokenizer.load(target)), adapter_corpus.fetch_archives(folder)
    splits = []
    for held_out in (False, True):
        split_archives = [archive for archive in archives if archive.held_out == held_out]
        count = tokens // ANSWER_TOKENS // (HELD_OUT_EVERY if held_out else 1) + 8
        gaps = list(sample_packages(split_archives, encoder, fim, count, seed, reporter, questions_of_gap))
        random.Random(seed).shuffle(gaps)
        splits.append([question._replace(held_out=held_out) for question in chain.from_iterable(gaps)])
    return alternating(*map(iter, splits))


def questions_of_gap(maker: FimExampleSampler, name: str, rng: random.Random) -> list[Question]:
    """Return the prompts of a gap in one file, in the order in which it is typed."""
    scene = maker.sample_scene(name, rng)
    max_tokens = rng.choices(list(PROMPTS), list(PROMPTS.values()))[0]
    questions = []
    for cursor in sample_cursors(scene, rng):
        word = word_to_heal(scene.text[:cursor], rng)
        prompt = maker.build_prompt(scene, cursor, word, maker.form, max_tokens)
        questions.append(Question(scene.gap.kind, "", False, (), tuple(prompt)))
    return questions


def sample_cursors(scene: FimScene, rng: random.Random) -> list[int]:
    """Return the cursor positions of a gap: its start, and positions reached while it is typed."""
    gap = scene.gap
    end = min(gap.start + OPEN_CHARS, len(scene.text)) if gap.is_open else gap.end
    cursors = [gap.start]
    while len(cursors) < MAX_CURSORS and (cursor := cursors[-1] + rng.randint(*CURSOR_DISTANCE)) < end:
        cursors.append(cursor)
    return cursors
