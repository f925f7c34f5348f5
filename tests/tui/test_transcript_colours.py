"""Highlighting behind the screen: the event loop loads no lexer, and code that ended comes right a moment later."""

import threading
from collections.abc import Iterable

import pytest

from localdflash.chat.messages import Message
from localdflash.tui import highlight
from localdflash.tui.styled_lines import StyledRun
from tests.tui.transcript_stage import TranscriptStage, shown_messages, until

CODE = 'x = """a\nimport b\n"""\n'
ANSWER = f"See:\n\n```python\n{CODE}```\n\nDone."


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


@pytest.mark.parametrize("old", [True, False])
async def test_code_that_ended_is_highlighted_as_a_whole(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, threading.Thread]] = []

    def whole(language: str, lines: Iterable[str]) -> list[tuple[StyledRun, ...]]:
        seen.append((language, threading.current_thread()))
        return [(StyledRun(line, "fence syntax.error"),) for line in lines]

    monkeypatch.setattr(highlight, "exact", whole)
    async with shown_messages([Message("assistant", ANSWER, finish="stop")] if old else []) as (stage, _pilot):
        if not old:
            stage.transcript.add(Message("assistant", ""))
            stage.transcript.feed(ANSWER)
            await until(lambda: "Done." in stage.screen_text)
            await until(lambda: _settled(stage))
            assert not seen
            stage.transcript.finish(Message("assistant", ANSWER, finish="stop"))
        await until(lambda: seen and _settled(stage))
        assert _styles(stage, "import b") == "fence syntax.error"
        row = next(y for y, text in enumerate(stage.rows) if "import b" in text)
        drawn = list(stage.transcript.render_line(row))
        error = stage.transcript._paint().palette["syntax.error"].color
        assert any(segment.style and segment.style.color == error for segment in drawn if "import" in segment.text)
    assert [language for language, _ in seen] == ["python"]
    assert threading.main_thread() not in [thread for _, thread in seen]
