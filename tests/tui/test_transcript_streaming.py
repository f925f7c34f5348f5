"""An answer that grows: nothing is lost, the reader keeps the place, and nothing stops the chat."""

import asyncio
import random
import time

import pytest
from textual.events import Resize
from textual.geometry import Size

from localdflash.chat.messages import Message, StepRecord
from localdflash.tui.markdown import MarkdownDocument
from localdflash.tui.transcript import Transcript
from tests.tui.transcript_stage import shown_messages, talk, until

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


async def test_what_was_received_is_what_is_shown_however_it_came_and_whenever_it_was_stopped() -> None:
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


async def test_the_reader_who_scrolled_up_stays_and_sees_that_there_is_more() -> None:
    async with shown_messages(talk(10)) as (stage, pilot):
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


async def test_40_changes_of_the_size_while_it_grows_lose_nothing() -> None:
    async with shown_messages() as (stage, pilot):
        random_ = random.Random(5)
        text = "".join(f"row {n} of the answer\n\n" for n in range(100))
        stage.transcript.feed("")
        for n in range(40):
            stage.transcript.feed(text[n * len(text) // 40 : (n + 1) * len(text) // 40])
            size = Size(random_.randint(1, 150), random_.randint(1, 50))
            stage.post_message(Resize(size, size))
            await asyncio.sleep(0.003)
        await until(lambda: not stage.transcript._queue)
        await pilot.resize_terminal(80, 300)
        stage.transcript.finish(Message("assistant", text, finish="stop"))
        await pilot.pause()
        assert stage.transcript.following
        assert [row.strip() for row in stage.rows if row.startswith("  row")] == [
            f"row {n} of the answer" for n in range(100)
        ]


async def test_tints_come_while_it_grows() -> None:
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


async def test_markup_that_cannot_be_drawn_is_shown_as_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: MarkdownDocument, width: int) -> None:
        raise RecursionError

    async with shown_messages() as (stage, _pilot):
        monkeypatch.setattr(MarkdownDocument, "lines", broken)
        stage.transcript.feed("**as it came**")
        await until(lambda: "**as it came**" in stage.screen_text)


async def test_a_defect_in_a_frame_does_not_end_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown_messages() as (stage, _pilot):
        grow = Transcript._last_grew
        monkeypatch.setattr(Transcript, "_last_grew", lambda self: 1 / 0)
        stage.transcript.feed("one ")
        await until(lambda: not stage.transcript._queue)
        monkeypatch.setattr(Transcript, "_last_grew", grow)
        stage.transcript.feed("two")
        await until(lambda: "one two" in stage.screen_text)


async def test_400_tokens_a_second_into_a_fence_of_1000_lines_leave_the_loop_free() -> None:
    """Keys are looked at in between. How soon is for `lab/scripts/chat_latency.py`; here other programs may be busy."""
    async with shown_messages([], (120, 40)) as (stage, _pilot):
        random_ = random.Random(1)
        code = "".join(f"    value_{n} = compute('text', {n})  # and so on\n" for n in range(1000))
        stage.transcript.feed("```python\n" + code[:-4000])
        await until(lambda: not stage.transcript._queue)
        stalls: list[float] = []
        watching = asyncio.create_task(_watch(stalls))
        begun, at = time.monotonic(), len(code) - 4000
        while at < len(code):  # tokens of four characters, up to 16 a step
            size = 4 * random_.randint(1, 16)
            stage.transcript.feed(code[at : at + size])
            at += size
            await asyncio.sleep(max(0.0, begun + (at - len(code) + 4000) / 1600 - time.monotonic()))
        await until(lambda: not stage.transcript._queue)
        took = time.monotonic() - begun
        watching.cancel()
        assert stage.transcript.source_shown() == "```python\n" + code
        assert sorted(stalls)[int(len(stalls) * 0.95)] <= 0.1  # Textual's own widget: 0.17, and ten times as long
        assert took <= 2.5 * 2


async def _watch(stalls: list[float]) -> None:
    """How much later than asked for a task goes on, again and again."""
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.002)
        stalls.append(time.monotonic() - before - 0.002)
