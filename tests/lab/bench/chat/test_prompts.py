"""The chat prompts: enough of each, the same everywhere, and nothing that a drafter was trained on."""

import hashlib
import json
import re
import tomllib
from collections import Counter
from dataclasses import asdict

import pytest

from localdflash.base.errors import UsageError
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.bench.chat.chat_prompts import CATEGORIES, ChatPrompt, load, schema_of
from localdflash.lab.bench.prompt_set import FOLDER
from localdflash.lab.train.questions import QUESTION_LIST

PROMPTS = load()
SOURCES = [path.read_text() for path in sorted(FOLDER.glob("*.py"))]

# Of the whole set. It changes only together with the prompts, and then earlier results compare no more.
GOLDEN = "8246f5d7a7b3bb2c9d6ee935c7bd1ea5846b0417d3754487297c38870208552d"


def of(category: str) -> list[ChatPrompt]:
    return [prompt for prompt in PROMPTS if prompt.category == category]


def test_forty_different_questions_of_each_category() -> None:
    assert Counter(prompt.category for prompt in PROMPTS) == dict.fromkeys(CATEGORIES, 40)
    assert len({prompt.id for prompt in PROMPTS}) == len({prompt.question for prompt in PROMPTS}) == len(PROMPTS)


def test_the_set_is_the_same_everywhere() -> None:
    text = json.dumps([asdict(prompt) for prompt in PROMPTS], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == GOLDEN


def test_any_first_part_has_some_of_all_categories() -> None:
    assert [prompt.category for prompt in PROMPTS[:14]] == [*CATEGORIES, *CATEGORIES]
    assert load(3) == PROMPTS[:21]
    assert load(10_000) == PROMPTS


def test_a_limit_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="0"):
        load(0)


# Nothing a drafter was trained on


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


# JSON


def test_fields_become_a_schema() -> None:
    assert schema_of("name:string count:integer colour:red|blue tags:strings") == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "colour": {"enum": ["red", "blue"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": ["name", "count", "colour", "tags"],
        "additionalProperties": False,
    }


def test_a_long_document_is_all_modules_in_an_order_of_its_own() -> None:
    one, other = chat_prompts.long_document(0), chat_prompts.long_document(1)
    assert one == chat_prompts.long_document(0) != other
    assert all(source in one and source in other for source in SOURCES)
