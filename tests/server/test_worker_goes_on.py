"""A completion whose end does not count goes on: another request of the engine, and the same answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from localdflash.models.registry.registry import load_registry, local_files
from tests.support.scripted_pair import answering_client

BODY = {
    "path": "a.py",
    "prefix": "def size(path):\n",
    "middle": "    if pa",
    "suffix": "\n\n\nprint(size('.'))\n",
    "least_sure": 0.25,
    "stream": False,
}


@pytest.fixture(autouse=True)
def _unhealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script is not asked to spell the word at the cursor again."""
    monkeypatch.setattr("localdflash.code.fim.infill_plan.unfinished_word", lambda _: "")


def answered(*answers: tuple[str, Sequence[str]], **change: Any) -> tuple[dict[str, Any], int]:
    """The answer of a pair that says what belongs to the end of its prompt, and how many prompts it read."""
    asked = list[str]()

    def answer(prompt: str) -> Sequence[str]:
        asked.append(prompt)
        return next(parts for end, parts in answers if prompt.endswith(end))

    vocabulary = local_files(load_registry().resolve("embedded")).target
    with answering_client(vocabulary, answer) as (client, _):
        told: dict[str, Any] = client.post("/complete", {**BODY, **change}).json()
    return told["choices"][0], len(asked)


END = "<|im_end|>"
HEADER = ("<|fim_middle|>if", ["th is None:", END])
BODY_OF_IT = ("if path is None", ["\n        return 0", END])


def test_a_header_comes_with_its_body() -> None:
    choice, prompts = answered(HEADER, BODY_OF_IT)
    assert choice["text"] == "th is None:\n        return 0"
    assert choice["confidence"] > 0.9
    assert prompts == 2
