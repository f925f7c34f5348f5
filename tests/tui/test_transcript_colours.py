"""Highlighting: the event loop loads no lexer."""

import threading

import pytest

from localdflash.chat.messages import Message
from localdflash.tui import highlight
from tests.tui.transcript_stage import TranscriptStage, shown_messages, until


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lexer is there."""
    monkeypatch.setattr(highlight, "_lexers", {"": None})
    monkeypatch.setattr(highlight, "missing", set())


def _styles(stage: TranscriptStage, text: str) -> str:
    """Of the run with this text in the last message."""
    entry = stage.transcript._column.entries[-1]
    runs = (run for row in range(entry.height) for run in entry.line(row).runs)
    return next(run.style for run in runs if text in run.text)


def _settled(stage: TranscriptStage) -> bool:
    colouring = stage.transcript._colouring
    return colouring is not None and colouring.is_finished


async def test_a_lexer_is_loaded_in_a_thread_and_the_code_is_coloured_then(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    may_load, lexer_for = threading.Event(), highlight.lexer_for

    def slow(language: str) -> object:
        threads.append(threading.current_thread())
        assert may_load.wait(10)
        return lexer_for(language)

    monkeypatch.setattr(highlight, "lexer_for", slow)
    async with shown_messages([Message("user", "go"), Message("assistant", "")]) as (stage, _pilot):
        stage.transcript.feed("```python\nimport that\nx = 1\n")
        await until(lambda: "import that" in stage.screen_text)
        assert _styles(stage, "import") == "fence"
        may_load.set()
        await until(lambda: _settled(stage))
        assert _styles(stage, "import") == "fence syntax.keyword"
        stage.transcript.feed("def more")
        await until(lambda: "def more" in stage.screen_text)
        assert _styles(stage, "def") == "fence syntax.keyword"
    assert threads
    assert threading.main_thread() not in threads
