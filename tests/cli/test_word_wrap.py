"""Wrapping of text printed to a terminal."""

import os
import shutil
import sys
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect
from localdflash.cli.console_chat import print_answer
from localdflash.cli.word_wrap import WordWrap

ROWS = [
    "One day a ship",
    "sailed to",
    "an-island-with-a-long-name at",  # the terminal breaks a word of more than 16 characters
    "sea.",
    "```",
    "x = [1, 2, 3, 4, 5, 6, 7, 8, 9]",
    "```",
    "The end",
    "",
]


@pytest.mark.parametrize("size", [1, 3, 100])
def test_streamed_text_breaks_between_words(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((16, 24)))
    text = "\n".join(ROWS).replace("ship\n", "ship ").replace("at\n", "at ")
    wrapping = WordWrap()
    printed = [wrapping.push(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(printed).split("\n") == ROWS


def test_the_last_word_of_a_broken_answer_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(show: Any, _think: Any) -> Any:
        show("one tw")
        raise EngineDisconnect("gone")

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(EngineDisconnect):
        print_answer(ask)
    assert capsys.readouterr().out == "one tw\n"
