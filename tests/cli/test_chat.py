"""`localdflash chat -p`: one answer for scripts, and what it says of prompts and values that make no sense."""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_the_answer_is_all_of_stdout(chat: Callable[..., Any]) -> None:
    told = json.loads(chat("-p", "What is zip?", "--max-tokens", 20, "--json").out)
    done = chat("-p", "What is zip?", "--max-tokens", 20)
    assert done.code == 0
    assert done.out == told["answer"] + "\n"


def test_an_answer_that_was_cut_says_so_on_stderr(chat: Callable[..., Any]) -> None:
    done = chat("-p", "What is zip?", "--max-tokens", 5)
    assert "cut after 5 tokens" in done.err
    assert json.loads(chat("-p", "What is zip?", "--max-tokens", 5, "--json").out)["finish"] == "length"


def test_stdin_is_a_prompt(chat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = chat("-p", "What is zip?\nAnd é?", "--max-tokens", 20).out
    pipe(monkeypatch, "What is zip?\nAnd é?".encode())
    assert chat("--max-tokens", 20).out == expected


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Gives the command a stdin from a file."""
    with ExitStack() as stack:

        def give(data: bytes) -> None:
            (tmp_path / "stdin").write_bytes(data)
            monkeypatch.setattr(sys, "stdin", stack.enter_context((tmp_path / "stdin").open(encoding="utf-8")))

        yield give


def test_stdin_goes_along_with_a_prompt_in_a_fence(chat: Callable[..., Any], beside: Callable[[bytes], None]) -> None:
    expected = chat("-p", "stdin:\n````\n-x\n```\n+y\n````\n\nReview.", "--max-tokens", 20).out
    beside(b"-x\n```\n+y\n")
    assert chat("-p", "Review.", "--max-tokens", 20).out == expected


def test_a_pipe_beside_a_prompt(chat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = json.loads(chat("-p", "Review.", "--max-tokens", 4, "--json").out)
    read, write = os.pipe()
    os.write(write, b"x = 1\n")
    os.close(write)
    with open(read, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        both = json.loads(chat("-p", "Review.", "--max-tokens", 4, "--json").out)
    assert both["answer"] != alone["answer"]


def test_nothing_beside_a_prompt(chat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    expected = chat("-p", "Review.", "--max-tokens", 4).out
    with open(os.devnull, encoding="utf-8") as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        assert chat("-p", "Review.", "--max-tokens", 4).out == expected


def test_json_has_the_statistics(chat: Callable[..., Any]) -> None:
    told = json.loads(chat("-p", "Hello", "--max-tokens", 24, "--json").out)
    assert told.keys() >= {"answer", "finish", "tokens", "steps", "tau", "accept_by_slot", "tokens_per_second"}
    assert Path(told["model"]).name == "target.gguf"
    assert told["steps"] + told["accepted"] == told["tokens"] <= 24


@pytest.mark.usefixtures("drafting")
@pytest.mark.parametrize("sampling", [("--temperature", "0.8", "--seed", "3", "--top-k", "40")])
def test_drafting_changes_nothing(sampling: tuple[str, ...], chat: Callable[..., Any]) -> None:
    arguments = ("-p", "Write a function that adds.", "--max-tokens", 120, *sampling)
    assert chat(*arguments).out == chat(*arguments, "--no-draft").out


@pytest.mark.parametrize("prompt", ["  \n\t"])
def test_an_empty_prompt(prompt: str, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert fails(2, "chat", "-p", prompt) == "the prompt is empty: pass text with -p or on stdin"
    pipe(monkeypatch, prompt.encode())
    assert fails(2, "chat") == "the prompt is empty: pass text with -p or on stdin"


def test_no_stdin_at_all(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert fails(2, "chat") == "the prompt is empty: pass text with -p or on stdin"


def test_a_stdin_that_does_not_end(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/zero", encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert fails(2, "chat").startswith("stdin has more than 16 MiB")


def test_stdin_that_is_no_text(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    pipe(monkeypatch, b"a\xff")
    assert fails(2, "chat") == "stdin is not UTF-8 at byte 1"


def test_a_prompt_that_does_not_fit(fails: Callable[..., str], tiny: tuple[str, ...]) -> None:
    said = fails(2, "chat", "--no-daemon", *tiny, "-p", "x = 1\n" * 900, "--max-tokens", 50)
    words = said.split()
    assert int(words[words.index("has") + 1]) > 1024
    assert said.endswith(": the context holds 1024; shorten it")


def test_bad_values(fails: Callable[..., str]) -> None:
    assert "temperature is -1" in fails(2, "chat", "-p", "x", "--temperature", "-1")
    assert "no pair 'embeded'; did you mean 'embedded'?" in fails(
        3, "chat", "--no-daemon", "-p", "x", "--pair", "embeded"
    )


class Screen(io.TextIOWrapper):
    """A stdin that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_json_needs_a_prompt(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Screen(io.BytesIO()))
    assert "--json needs a prompt" in fails(2, "chat", "--json")
