import hashlib
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.prompt_set import CATEGORIES, load

FILES = sorted((Path(prompt_set.__file__).parent / "prompts").glob("*.py"))
PROMPTS = load()

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"


def test_every_module_gives_one_prompt_of_every_category() -> None:
    assert len(FILES) >= 44
    assert len(PROMPTS) >= 220
    assert Counter(prompt.category for prompt in PROMPTS) == dict.fromkeys(CATEGORIES, len(FILES))
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS)


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN
