"""The prompts of the benches: the same everywhere, and nothing that a drafter was trained on."""

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.train.questions import QUESTION_LIST

PROMPTS = chat_prompts.load()


# Hashes of the whole sets. They change only together with the prompts, and then earlier results compare no more.
@pytest.mark.parametrize(
    ("prompts", "golden"),
    [
        (prompt_set.load(), "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"),
        (PROMPTS, "8246f5d7a7b3bb2c9d6ee935c7bd1ea5846b0417d3754487297c38870208552d"),
    ],
    ids=["code", "chat"],
)
def test_the_set_is_the_same_everywhere(prompts: Sequence[Any], golden: str) -> None:
    text = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == golden


@pytest.mark.parametrize("kind", ["talk", "json"])
def test_no_subject_of_a_training_question_is_asked_about(kind: str) -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    subjects = {s.lower() for family in families if family["kind"] == kind for s in family["subjects"]}
    for prompt in (each for each in PROMPTS if each.category == kind):
        asked = prompt.question.lower()
        assert [s for s in subjects if re.search(rf"(?<!\w){re.escape(s)}(?!\w)", asked)] == []


def test_no_pattern_of_a_training_question_makes_one_of_these() -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    trained = {p.format(s) for family in families for p in family["patterns"] for s in family["subjects"]}
    assert not trained & {prompt.question for prompt in PROMPTS}
