"""Where the reader is: long conversations, heights that become known, other widths."""

import random
import time

from localdflash.chat.messages import Message
from localdflash.tui.column import Column, RowPlace
from localdflash.tui.entry import ChatView
from tests.tui.transcript_stage import shown_messages, talk


def _uneven(turns: int) -> list[Message]:
    """Messages whose heights the estimate gets wrong."""
    random_ = random.Random(3)
    messages = talk(turns)
    for n in range(0, len(messages), 3):
        words = " ".join("word" * random_.randint(1, 6) for _ in range(random_.randint(1, 120)))
        messages[n] = Message("assistant", f"{words}\n\n{words}", finish="stop")
    return messages


async def test_1000_messages_are_there_at_once_and_few_of_them_are_laid_out() -> None:
    async with shown_messages([], (120, 40)) as (stage, _pilot):
        begun = time.perf_counter()
        stage.transcript.show(talk(500, 30))
        stage.rows  # noqa: B018
        assert time.perf_counter() - begun < 3
        assert "Done 499." in stage.screen_text
        laid = [entry for entry in stage.transcript._column.entries if entry.is_laid_out(stage.transcript._column.view)]
        assert len(laid) < 20
        assert len(stage.query("*")) < 10


async def test_page_by_page_to_the_top_shows_every_row_once() -> None:
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
        shown = [row for page in reversed(pages) for row in page]
        column = transcript._column
        for index in range(len(column.entries)):
            column.lay_out(index)
        true = [column.entries[i].line(r).text.rstrip() for i, r in map(column.at, range(column.height))]
        # The hint covers text only where rows are long.
        assert [row[2:40].rstrip() for row in shown] == [row[:38].rstrip() for row in true[len(true) - len(shown) :]]


async def test_the_row_at_the_top_stays_there_at_another_width() -> None:
    async with shown_messages(_uneven(40)) as (stage, pilot):
        await pilot.press("home")
        for _ in range(7):
            await pilot.press("pagedown")
        transcript = stage.transcript
        index, row = transcript._column.at(transcript.scroll_offset.y)
        entry = transcript._column.entries[index]
        first = entry.copied(entry.offset(row), None)[:8]
        for width in (33, 120, 60):
            await pilot.resize_terminal(width, 20)
            index_now, row_now = transcript._column.at(transcript.scroll_offset.y)
            entry = transcript._column.entries[index_now]
            assert index_now == index
            assert first in entry.copied(entry.offset(row_now), entry.offset(row_now + 1)) + entry.copied(
                entry.offset(row_now + 1), None
            )


def test_a_place_is_found_again_at_every_width() -> None:
    column = Column()
    column.show(_uneven(5))
    for index in range(len(column.entries)):
        column.lay_out(index)
    for row in range(column.height):
        assert column.row(column.place(row)) == row
    places = [column.place(row) for row in range(column.height)]
    column.guess(ChatView(31))
    for index in range(len(column.entries)):
        column.lay_out(index)
    rows = [column.row(place) for place in places]
    assert rows == sorted(rows)
    assert column.row(RowPlace(99, 0)) == 0
