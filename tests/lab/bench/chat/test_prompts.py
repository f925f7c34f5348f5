"""The chat prompts: enough of each, the same everywhere, and nothing that a drafter was trained on."""

import hashlib
import json
import re
import tomllib
from dataclasses import asdict

import pytest

from localdflash.lab.bench.chat.chat_prompts import ChatPrompt, load
from localdflash.lab.train.questions import QUESTION_LIST

PROMPTS = load()

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "8246f5d7a7b3bb2c9d6ee935c7bd1ea5846b0417d3754487297c38870208552d"


def of(category: str) -> list[ChatPrompt]:
    return [prompt for prompt in PROMPTS if prompt.category == category]


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


@pytest.mark.parametrize("kind", ["talk", "json"])
def test_no_subject_of_a_training_question_is_asked_about(kind: str) -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    subjects = {s.lower() for family in families if family["kind"] == kind for s in family["subjects"]}
    for prompt in of(kind):
        asked = prompt.question.lower()
        assert [s for s in subjects if re.search(rf"(?<!\w){re.escape(s)}(?!\w)", asked)] == []


def test_no_pattern_of_a_training_question_makes_one_of_these() -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    trained = {p.format(s) for family in families for p in family["patterns"] for s in family["subjects"]}
    assert not trained & {prompt.question for prompt in PROMPTS}
