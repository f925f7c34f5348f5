"""Messages on the screen: headers, keys, thoughts, selection, links, highlighting."""

import threading

import pytest
from textual.pilot import Pilot

from localdflash.chat.messages import Attachment, Message
from localdflash.tui import highlight
from localdflash.tui.captions import attachment_line, header, note_run
from tests.tui.transcript_stage import TranscriptStage, conversation, shown_messages, until


def test_names_are_sanitised_and_stay_on_one_line() -> None:
    evil = "a\x1b]0;t\x07\n\u202eb"
    answer = Message("assistant", "x", numbers={"model": evil})
    screen_text = [
        header(answer, 1, "").text,
        attachment_line(Attachment("file", evil, "")).text,
        note_run(evil, "note").text,
    ]
    for text in screen_text:
        assert not {"\x1b", "\x07", "\n", "\u202e"} & set(text)
        assert "⟦U+202E⟧b" in text


async def test_keys_act_on_the_highlighted_message() -> None:
    answer = Message("assistant", "```\nlast\n```")
    messages = [Message("user", "```\none\n```\n~~~py\ntwo\x1b\n~~~\n"), answer]
    async with shown_messages(messages) as (stage, pilot):
        for key in ("c", "k", "k", "c", "2", "e", "r", "f", "j", "c", "left_square_bracket", "1"):
            await pilot.press(key)
    assert stage.posted[:2] == [(answer.text, "message 2"), (messages[0].text, "message 1")]
    assert stage.posted[-5:-1] == [(0, "edit"), (0, "retry"), (0, "fork"), (answer.text, "message 2")]


async def test_code_blocks_are_copied_unchanged() -> None:
    code = "def f():\n\treturn '\x1b'\n"
    messages = [Message("assistant", f"```\none\n```\n\n```python\n{code}```\n")]
    async with shown_messages(messages) as (stage, pilot):
        await pilot.press("2", "3")
        assert stage.transcript.code_blocks() == ["one\n", code]
    assert stage.posted == [(code, "code block 2")]


async def test_thoughts_unfold_for_one_or_all_messages() -> None:
    answers = [Message("assistant", f"<think>\n{word} so\n</think>\n\nAnswer") for word in ("secretly", "privately")]
    async with shown_messages(answers) as (stage, pilot):

        async def visible_words() -> list[str]:
            await pilot.pause()
            return [word for word in ("secretly", "privately") if word in stage.screen_text]

        assert await visible_words() == []
        await pilot.press("enter")
        assert await visible_words() == ["privately"]
        stage.transcript.set_view(thoughts=True)
        assert await visible_words() == ["secretly"]
        await pilot.press("enter")
        assert await visible_words() == ["secretly", "privately"]


async def test_hidden_transcript_accepts_messages() -> None:
    async with shown_messages(conversation(2)) as (stage, pilot):
        transcript = stage.transcript
        transcript.display = False
        await pilot.pause()
        transcript.show([])
        transcript.add(Message("assistant", ""))
        transcript.feed("one ")
        transcript.feed("two")
        await until(lambda: not transcript._queue)
        transcript.set_view(tinted=True)
        transcript.note("a note")
        transcript.action_highlight(-1)
        transcript.finish(Message("assistant", "one two three", finish="stop"))
        transcript.display = True
        await until(lambda: "one two three" in stage.screen_text)
        assert "a note" in stage.screen_text


_LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


async def _drag(pilot: Pilot[None], start: tuple[int, int], end: tuple[int, int]) -> None:
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=(end[0] - 1, end[1]))
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)


def _position_of(stage: TranscriptStage, text: str) -> tuple[int, int]:
    """Return the position at which a text begins on the screen."""
    row = next(y for y, row in enumerate(stage.rows) if text in row)
    return stage.rows[row].index(text), row


async def test_selected_text_has_no_wraps_and_no_headers() -> None:
    async with shown_messages([Message("user", _LONG), Message("assistant", "short answer")], (40, 20)) as (
        stage,
        pilot,
    ):
        x, y = _position_of(stage, "sixteen")
        await _drag(pilot, _position_of(stage, "two"), (x + 6, y))
        assert stage.screen.get_selected_text() == _LONG[4:]
        x, y = _position_of(stage, "short")
        await _drag(pilot, _position_of(stage, "fifteen"), (x + 4, y))
        assert stage.screen.get_selected_text() == "fifteen sixteen\n\nshort"


async def test_selection_survives_new_text_and_resize() -> None:
    async with shown_messages(conversation(20)) as (stage, pilot):
        x, y = _position_of(stage, "value_19_2")
        await _drag(pilot, (x, y), (x + 9, y))
        for _ in range(30):
            stage.transcript.feed("more text\n\n")
        await until(lambda: not stage.transcript._queue)
        assert stage.screen.get_selected_text() == "value_19_2"
        await pilot.resize_terminal(33, 20)
        assert stage.screen.get_selected_text() == "value_19_2"
        stage.transcript.show(conversation(1))
        assert not stage.screen.get_selected_text()


async def test_double_click_selects_a_word_and_triple_click_a_line() -> None:
    async with shown_messages(conversation(1)) as (stage, pilot):
        x, y = _position_of(stage, "value_0_3")
        await pilot.click(offset=(x + 2, y), times=2)
        assert stage.screen.get_selected_text() == "value_0_3"
        await pilot.click(offset=(x + 2, y), times=3)
        assert (stage.screen.get_selected_text() or "").strip() == "value_0_3 = 3"


async def test_only_clicks_on_safe_links_are_posted() -> None:
    messages = [Message("assistant", "[docs](https://example.org/a) plain [evil](javascript:x)")]
    async with shown_messages(messages) as (stage, pilot):
        for text in ("docs", "plain", "evil"):
            await pilot.click(offset=_position_of(stage, text))
    assert stage.posted == ["https://example.org/a"]


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without loaded lexers."""
    monkeypatch.setattr(highlight, "_lexers", {"": None})
    monkeypatch.setattr(highlight, "missing_languages", set())


def _styles(stage: TranscriptStage, text: str) -> str:
    """Return the styles of the run with this text in the last message."""
    entry = stage.transcript._column.entries[-1]
    runs = (run for row in range(entry.height) for run in entry.line(row).runs)
    return next(run.style for run in runs if text in run.text)


def _is_highlighted(stage: TranscriptStage) -> bool:
    worker = stage.transcript._lexer_worker
    return worker is not None and worker.is_finished


async def test_lexer_is_loaded_in_a_thread_before_highlighting(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await until(lambda: _is_highlighted(stage))
        assert _styles(stage, "import") == "fence syntax.keyword"
        stage.transcript.feed("def more")
        await until(lambda: "def more" in stage.screen_text)
        assert _styles(stage, "def") == "fence syntax.keyword"
    assert threads
    assert threading.main_thread() not in threads
