"""Long conversations and streamed answers: no text is lost, and the scroll position stays."""

import random

import pytest

from localdflash.chat.messages import Message, StepRecord
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.transcript import Transcript
from tests.tui.transcript_stage import conversation, shown_messages, until

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
                assert received.startswith(stage.transcript.source_shown())
            stage.transcript.finish(Message("assistant", received, finish="cancelled"))
            assert stage.transcript.source_shown() == received


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
