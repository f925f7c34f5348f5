"""Messages on the screen: headers, keys, thoughts, selection, links, highlighting."""

import random
import threading

import pytest
from textual.pilot import Pilot

from localdflash.chat.messages import Attachment, Message, StepRecord
from localdflash.tui import highlight
from localdflash.tui.captions import attachment_line, header, note_run
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.transcript import Transcript
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
        stage.transcript.set_view(unfolds_thoughts=True)
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


_ANSWER = (
    "Text with *marks* é 錯 😋.\r\n\n```python\ndef f():\n\treturn '\x1b[0m'\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def _chunks(text: str, random_: random.Random) -> list[str]:
    chunks, at = [], 0
    while at < len(text):
        size = random_.choice((1, 1, 2, 3, 7, 16, 40))
        chunks.append(text[at : at + size])
        at += size
    return chunks


async def test_streamed_text_is_complete_for_any_chunks_and_stop() -> None:
    async with shown_messages() as (stage, _pilot):
        random_ = random.Random(0)
        for _ in range(100):
            chunks = _chunks(_ANSWER, random_)
            received = ""
            stage.transcript.show([Message("user", "q"), Message("assistant", "")])
            for chunk in chunks[: random_.randint(0, len(chunks))]:
                stage.transcript.feed(chunk)
                received += chunk
                if random_.random() < 0.2:
                    stage.transcript._frame()
                assert received.startswith(stage.transcript.shown_text())
            stage.transcript.finish(Message("assistant", received, finish="cancelled"))
            assert stage.transcript.shown_text() == received


async def test_scrolled_up_view_stays_and_shows_more_below() -> None:
    async with shown_messages(conversation(10)) as (stage, pilot):
        await pilot.press("pageup")
        before = stage.rows
        assert before[-1].endswith("▾ more below")
        for _ in range(40):
            stage.transcript.feed("a new line\n\n")
        await until(lambda: not stage.transcript._queue)
        await pilot.pause()
        assert stage.rows == before
        await pilot.press("end")
        assert "a new line" in stage.screen_text
        assert "more below" not in stage.screen_text
        stage.transcript.feed("the last line")
        await until(lambda: "the last line" in stage.screen_text)


async def test_tints_grow_with_the_answer() -> None:
    async with shown_messages() as (stage, _pilot):
        stage.transcript.set_view(tinted=True)
        stage.transcript.add(Message("assistant", ""))
        stage.transcript.feed("ab", StepRecord("lookup", 4, 1, (1, 1), 1.0))
        stage.transcript.feed("cd", StepRecord("lookup", 4, 2, (1, 1), 1.0))
        await until(lambda: "abcd" in stage.screen_text)
        assert " lookup 3  the model itself 1 in 2 steps" in stage.screen_text
        row = next(y for y, text in enumerate(stage.rows) if "abcd" in text)
        runs = [(one.text, one.style) for one in stage.transcript.render_line(row) if one.text.strip()]
        assert [text for text, _ in runs] == ["a", "b", "cd"]
        assert len({style.bgcolor for _, style in runs if style}) == 2
        assert [bool(style.underline) for _, style in runs if style] == [False, False, True]


async def test_markdown_error_shows_the_raw_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: MarkdownDocument, width: int) -> None:
        raise RecursionError

    async with shown_messages() as (stage, _pilot):
        monkeypatch.setattr(MarkdownDocument, "lines", broken)
        stage.transcript.feed("**as it came**")
        await until(lambda: "**as it came**" in stage.screen_text)


async def test_exception_in_a_frame_does_not_end_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown_messages() as (stage, _pilot):
        grow = Transcript._last_grew
        monkeypatch.setattr(Transcript, "_last_grew", lambda self: 1 / 0)
        stage.transcript.feed("one ")
        await until(lambda: not stage.transcript._queue)
        monkeypatch.setattr(Transcript, "_last_grew", grow)
        stage.transcript.feed("two")
        await until(lambda: "one two" in stage.screen_text)


def _uneven(turns: int) -> list[Message]:
    """Return messages whose heights are estimated wrongly."""
    random_ = random.Random(3)
    messages = conversation(turns)
    for n in range(0, len(messages), 3):
        words = " ".join("word" * random_.randint(1, 6) for _ in range(random_.randint(1, 120)))
        messages[n] = Message("assistant", f"{words}\n\n{words}", finish="stop")
    return messages


async def test_paging_up_shows_every_row_once() -> None:
    async with shown_messages([], (80, 20)) as (stage, _pilot):
        transcript = stage.transcript
        transcript.show(_uneven(30))
        transcript.following = False
        pages = [stage.rows]
        while transcript.scroll_offset.y:
            before = transcript.scroll_offset.y
            transcript.scroll_page_up(animate=False)
            if transcript.scroll_offset.y == 0 and before < 20:
                break
            pages.append([row.replace("▾ more below", "").rstrip() for row in stage.rows])
        screen_text = [row for page in reversed(pages) for row in page]
        column = transcript._column
        for index in range(len(column.entries)):
            column.lay_out(index)
        true = [column.entries[i].line(r).text.rstrip() for i, r in map(column.entry_at, range(column.height))]
        # The hint covers text only where rows are long.
        assert [row[2:40].rstrip() for row in screen_text] == [
            row[:38].rstrip() for row in true[len(true) - len(screen_text) :]
        ]


async def test_top_row_stays_after_a_resize() -> None:
    async with shown_messages(_uneven(40)) as (stage, pilot):
        await pilot.press("home")
        for _ in range(7):
            await pilot.press("pagedown")
        transcript = stage.transcript
        index, row = transcript._column.entry_at(transcript.scroll_offset.y)
        entry = transcript._column.entries[index]
        first = entry.text_between(entry.offset(row), None)[:8]
        for width in (33, 120, 60):
            await pilot.resize_terminal(width, 20)
            index_now, row_now = transcript._column.entry_at(transcript.scroll_offset.y)
            entry = transcript._column.entries[index_now]
            assert index_now == index
            assert first in entry.text_between(entry.offset(row_now), entry.offset(row_now + 1)) + entry.text_between(
                entry.offset(row_now + 1), None
            )
