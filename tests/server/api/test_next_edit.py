"""POST /complete in mode `edit`, with scripted answers: changes, refusals, and drafts that copy the region."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localdflash.code.next_edit.line_changes import diff_of
from tests.server.api.dialects import plain_events
from tests.support.scripted_pair import answering_client

MakeVocabulary = Callable[..., Path]
OLD = "".join(f"def function_{name}(width):\n    return width * {number}\n\n\n" for number, name in enumerate("abcdef"))
TEXT = OLD.replace("function_c(width)", "function_c(w)")
AT = TEXT.index("function_c(w") + len("function_c(w")
UPDATED = TEXT.replace("return width * 2", "return w * 2")
BODY = {
    "path": "a.py",
    "prefix": TEXT[:AT],
    "suffix": TEXT[AT:],
    "context": [{"kind": "edit", "name": "a.py", "text": diff_of(OLD, TEXT)}],
    "mode": "edit",
}
SPECIALS = {
    "sweep-next-edit-1.5b": ["<|endoftext|>", "<|file_sep|>"],
    "zeta-2": ["<[end▁of▁sentence]>", "<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", "<filename>"],
    "zeta-2.1": ["<[end▁of▁sentence]>", "<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", "<filename>"],
}
CHANGE = [9, 10, ["    return w * 2"]]  # first line, the line after the last, new lines


def predicted(client: Any, **change: Any) -> Any:
    """Return the only event."""
    (event,) = plain_events(client.post("/complete", {**BODY, **change}).text)
    return event


def between(text: str, start: str, end: str) -> str:
    """Return a part of a prompt; the targets see the prompt without its last token."""
    return text.rpartition(start)[2].partition(end)[0]


def sweep(prompt: str) -> Sequence[str]:
    assert prompt.endswith("<|file_sep|>updated/a.py")
    original = between(prompt, "<|file_sep|>original/a.py\n", "<|file_sep|>")
    current = between(prompt, "<|file_sep|>current/a.py\n", "<|file_sep|>")
    assert (original in OLD, current in TEXT) == (True, True)
    return [current.replace("return width * 2", "return w * 2"), "<|endoftext|>"]


def zeta_2(prompt: str) -> Sequence[str]:
    current = between(prompt, "<<<<<<< CURRENT\n", "=======\n").replace("<|user_cursor|>", "")
    return [current.replace("return width * 2", "return w<|user_cursor|> * 2") + ">>>>>>> UPDATED\n"]


def zeta_2_1(prompt: str) -> Sequence[str]:
    block = between(prompt, "<|marker_2|>", "<|marker_3|>").replace("<|user_cursor|>", "")
    return [f"<|marker_2|>{block.replace('return width * 2', 'return w * 2')}<|marker_3|>", "<[end▁of▁sentence]>"]


ANSWERS = {"sweep-next-edit-1.5b": sweep, "zeta-2": zeta_2, "zeta-2.1": zeta_2_1}


@pytest.fixture
def serving(make_vocabulary: MakeVocabulary) -> Callable[..., Any]:
    @contextmanager
    def start(name: str, answer: Callable[[str], Sequence[str]]) -> Iterator[Any]:
        vocabulary = make_vocabulary(dict.fromkeys(SPECIALS[name], 3), {"general.name": name})
        with answering_client(vocabulary, answer) as (client, _):
            yield client

    return start


@pytest.mark.parametrize("name", ANSWERS)
def test_the_changes_of_every_format_and_drafts_from_the_prompt(serving: Any, name: str) -> None:
    with serving(name, ANSWERS[name]) as client:
        told = predicted(client)
        assert (told["changes"], told["finish"], told["stop"]) == ([CHANGE], "stop", True), told
        assert told["timings"]["steps_by_drafter"].get("lookup")
        assert told["tau"] > 2


@pytest.mark.parametrize(
    ("name", "answer", "finish"),
    [
        ("zeta-2", ["def f():\n", "<[end▁of▁sentence]>"], "malformed"),  # without its last line
        ("zeta-2.1", ["<|marker_2|>x<|marker_1|>", "<[end▁of▁sentence]>"], "malformed"),
        ("sweep-next-edit-1.5b", ["<|endoftext|>"], "malformed"),
        ("sweep-next-edit-1.5b", ["x\n" * 2000], "length"),
    ],
)
def test_what_does_not_parse_changes_nothing(serving: Any, name: str, answer: list[str], finish: str) -> None:
    with serving(name, lambda _: answer) as client:
        told = predicted(client)
        assert (told["changes"], told["finish"]) == ([], finish)


def test_completions_are_left_to_next_edits(serving: Any) -> None:
    with serving("zeta-2", zeta_2) as client:
        (event,) = plain_events(client.post("/complete", {"prefix": "x = ", "suffix": "\n"}).text)
        assert (event["text"], event["finish"], event["stop"]) == ("", "next_edit", True)
        refused = client.post("/complete", {"prefix": "x = ", "stream": False})
        assert (refused.status_code, "predicts edits" in refused.text) == (400, True)
        assert predicted(client, prefix="x = '<|user_cursor|>'")["finish"] == "refused"


def test_a_model_that_fills_in_predicts_no_edits(client: Any) -> None:
    refused = client.post("/complete", BODY)
    assert (refused.status_code, "embedded does not predict edits" in refused.text) == (400, True)
