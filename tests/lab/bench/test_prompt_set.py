import hashlib
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.prompt_set import CATEGORIES, BenchPrompt, load

FILES = sorted((Path(prompt_set.__file__).parent / "prompts").glob("*.py"))
PROMPTS = load()

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"


def of(category: str) -> list[BenchPrompt]:
    return [prompt for prompt in PROMPTS if prompt.category == category]


def source_of(prompt: BenchPrompt) -> str:
    return FILES[int(prompt.id.split("/")[1])].read_text()


def test_every_module_gives_one_prompt_of_every_category() -> None:
    assert len(FILES) >= 44
    assert len(PROMPTS) >= 220
    assert Counter(prompt.category for prompt in PROMPTS) == dict.fromkeys(CATEGORIES, len(FILES))
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS)


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


def test_limit_takes_the_first_of_each_category() -> None:
    assert load(3) == [prompt for category in CATEGORIES for prompt in of(category)[:3]]
    assert load(10_000) == PROMPTS


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0"):
        load(0)


@pytest.mark.parametrize("prompt", (of("fim_line") + of("fim_block"))[::11], ids=lambda prompt: prompt.id)
def test_fim_pieces_are_whole_lines_of_the_file_around_the_answer(prompt: BenchPrompt) -> None:
    source, joined = source_of(prompt), prompt.prefix + prompt.reference + prompt.suffix
    start = source.find(joined)
    assert start == 0 or source[start - 1] == "\n"
    assert joined.endswith("\n")
    assert prompt.suffix.startswith("\n")
    assert prompt.reference.strip()
    assert len(prompt.prefix) <= 1500
    assert len(prompt.suffix) <= 500
    if start > 0:
        assert len(prompt.prefix) > 1500 - 120  # cut no more than needed
    if len(source) > start + len(joined):
        assert len(prompt.suffix) > 500 - 120
