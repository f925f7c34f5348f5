import hashlib
import json
from dataclasses import asdict

from localdflash.lab.bench.prompt_set import load

PROMPTS = load()

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN
