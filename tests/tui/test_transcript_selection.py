"""Text selected with the mouse: as it was written, and where it was."""

from textual.pilot import Pilot

from localdflash.chat.messages import Message
from tests.tui.transcript_stage import TranscriptStage, shown_messages, talk, until

_LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


async def _drag(pilot: Pilot[None], start: tuple[int, int], end: tuple[int, int]) -> None:
    await pilot.mouse_down(offset=start)
    await pilot.hover(offset=(end[0] - 1, end[1]))
    await pilot.hover(offset=end)
    await pilot.mouse_up(offset=end)


def _at(stage: TranscriptStage, text: str) -> tuple[int, int]:
    """Where a text begins on the screen."""
    row = next(y for y, row in enumerate(stage.rows) if text in row)
    return stage.rows[row].index(text), row


async def test_selected_text_has_no_hard_wraps_and_no_headers() -> None:
    async with shown_messages([Message("user", _LONG), Message("assistant", "short answer")], (40, 20)) as (
        stage,
        pilot,
    ):
        x, y = _at(stage, "sixteen")
        await _drag(pilot, _at(stage, "two"), (x + 6, y))
        assert stage.screen.get_selected_text() == _LONG[4:]
        x, y = _at(stage, "short")
        await _drag(pilot, _at(stage, "fifteen"), (x + 4, y))
        assert stage.screen.get_selected_text() == "fifteen sixteen\n\nshort"


async def test_a_selection_survives_later_text_and_another_width() -> None:
    async with shown_messages(talk(20)) as (stage, pilot):
        x, y = _at(stage, "value_19_2")
        await _drag(pilot, (x, y), (x + 9, y))
        for _ in range(30):
            stage.transcript.feed("more text\n\n")
        await until(lambda: not stage.transcript._queue)
        assert stage.screen.get_selected_text() == "value_19_2"
        await pilot.resize_terminal(33, 20)
        assert stage.screen.get_selected_text() == "value_19_2"
        stage.transcript.show(talk(1))
        assert not stage.screen.get_selected_text()


async def test_two_clicks_select_a_word_and_three_a_line() -> None:
    async with shown_messages(talk(1)) as (stage, pilot):
        x, y = _at(stage, "value_0_3")
        await pilot.click(offset=(x + 2, y), times=2)
        assert stage.screen.get_selected_text() == "value_0_3"
        await pilot.click(offset=(x + 2, y), times=3)
        assert (stage.screen.get_selected_text() or "").strip() == "value_0_3 = 3"


async def test_a_click_on_a_link_is_posted_and_only_safe_ones() -> None:
    messages = [Message("assistant", "[docs](https://example.org/a) plain [evil](javascript:x)")]
    async with shown_messages(messages) as (stage, pilot):
        for text in ("docs", "plain", "evil"):
            await pilot.click(offset=_at(stage, text))
    assert stage.posted == ["https://example.org/a"]
