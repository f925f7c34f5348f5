"""Sample examples from packages, and mix in the target's own chat answers so that it does not forget to chat.

Each language has a fixed share of the examples, divided among its packages by the square root of their sizes.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train.adapter_corpus import Archive, read_sources
from localdflash.lab.train.adapter_data import FimExample
from localdflash.lab.train.adapter_examples import FimExampleSampler
from localdflash.lab.train.resumable_run import Reporter
from localdflash.lab.train.stored_answers import StoredAnswers
from localdflash.text.fim_formats import FimFormat
from localdflash.text.syntax import language_of

SHARES = {"python": 0.54, "javascript": 0.17, "typescript": 0.2, "tsx": 0.03, "c": 0.02, "cpp": 0.04}
CHAT_SHARE = 0.07  # share of all ids that are chat answers of the target
MAX_CHAT_TOKENS = 700  # maximum length of a prompt with its answer

Texts = Mapping[str, str]
Sample = TypeVar("Sample")


def sample_packages(
    packages: list[Archive],
    encoder: Encoder,
    form: FimFormat,
    count: int,
    seed: int,
    reporter: Reporter,
    sample: Callable[[FimExampleSampler, str, random.Random], Sample],
) -> Iterator[Sample]:
    """Yield the results of `sample` for about `count` sampled files, package after package."""
    sources = [read_sources(package) for package in packages]
    for number, (package, texts, shares) in enumerate(zip(packages, sources, _shares(sources), strict=True)):
        reporter.move(number / len(packages), f"examples from {package.path.name}")
        rng = random.Random(f"{seed}/{package.path.name}")
        counts = [
            (language, round(share * count + rng.random() - 0.5)) for language, share in shares.items() if share * count
        ]
        if sum(count_of_language for _, count_of_language in counts):
            yield from _sample_package(texts, counts, encoder, form, rng, sample)


def _shares(sources: list[dict[str, str]]) -> list[dict[str, float]]:
    """Return each package's share of all examples, by language; `sources` has each package's texts by path."""
    sizes = [Counter[str]() for _ in sources]
    for size, texts in zip(sizes, sources, strict=True):
        for name, text in texts.items():
            size[language_of(name)] += len(text)
    weights = [{language: size[language] ** 0.5 for language in sorted(size)} for size in sizes]
    sums = Counter[str]()
    for weight in weights:
        sums.update(weight)
    total_share = sum(SHARES[language] for language in sums)
    return [
        {language: SHARES[language] / total_share * value / sums[language] for language, value in weight.items()}
        for weight in weights
    ]


def _sample_package(
    texts: Texts,
    counts: list[tuple[str, int]],
    encoder: Encoder,
    form: FimFormat,
    rng: random.Random,
    sample: Callable[[FimExampleSampler, str, random.Random], Sample],
) -> Iterator[Sample]:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name, text in texts.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        generator = FimExampleSampler(encoder, form, root, texts)
        try:
            for language, count_of_language in counts:
                names = sorted(name for name in texts if language_of(name) == language)
                sizes = [len(texts[name]) for name in names]
                for name in rng.choices(names, sizes, k=count_of_language):
                    yield sample(generator, name, rng)
        finally:
            generator.close()


def chat_examples(folder: Path, held_out: bool, tokens: int, seed: int) -> Iterator[FimExample]:
    """Yield stored answers of a target, held-out ones or others, in random order, up to about `tokens` ids."""
    answers = StoredAnswers.load(folder)
    chosen = np.flatnonzero((answers.index["held_out"] == held_out) & (answers.index["length"] <= MAX_CHAT_TOKENS))
    for number in np.random.default_rng(seed).permutation(chosen):
        if tokens <= 0:
            return
        row = answers.index[number]
        start, length = int(row["start"]), int(row["length"])
        tokens -= length
        ids = answers.tokens[start : start + length].astype(np.int64)
        yield FimExample(ids, int(row["prompt"]), "chat", "chat")
