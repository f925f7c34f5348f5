"""Wrapping of text printed to a terminal."""

import os
import shutil

import pytest

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
