"""What else happens while a session suggests: other documents, a cursor elsewhere, an engine that stops in a word."""

import asyncio

import pytest

from localdflash.lsp.session import Cursor, Offer
from localdflash.lsp.suggestions import NewestSuggestions, Spot, Suggestion
from tests.lsp.desk import HEAD, TAIL, Desk, settled, texts

OTHER = "file:///b.py"


async def shown(desk: Desk, text: str = "def add(a, b):") -> Offer:
    """A suggestion that is shown at the cursor, and nothing of what would come after it."""
    waiting = desk.ask()
    (await desk.asked(len(desk.completer.asked) + 1)).say(text, end="line")
    (offer,) = await waiting
    await settled()
    desk.completer.asked[-1].say("", end="stop")
    await settled()
    return offer


async def test_what_happens_to_another_document_stops_nothing() -> None:
    desk = Desk()
    other = desk.of(OTHER)
    theirs = asyncio.create_task(other.offers(Cursor(HEAD, TAIL, False, lambda: True)))
    (await desk.asked(1)).say("", end="stop")
    await theirs
    other.leave()
    waiting = desk.ask()
    asked = await desk.asked(2)
    other.changed("something else")
    other.leave()
    await settled()
    assert not asked.closed
    asked.say("def add(a, b):", end="line")
    assert texts(await waiting) == ["def add(a, b):"]


async def test_a_document_that_is_left_generates_no_more() -> None:
    desk = Desk()
    offer = await shown(desk)
    desk.type(offer.text + "\n")
    waiting = desk.ask()
    asked = await desk.asked(len(desk.completer.asked) + 1)
    desk.session.leave()
    assert await waiting == []
    await settled()
    assert asked.closed


async def test_nothing_is_generated_ahead_for_a_document_that_is_closed() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):", end="line")
    (offer,) = await waiting
    desk.session.leave()
    desk.session._ahead(offer.suggestion)  # as it was about to
    await settled()
    assert desk.completer.live == 0


@pytest.mark.parametrize("how", ["left", "broken", "superseded"])
async def test_a_text_that_was_cut_off_is_shown_without_its_last_line(how: str) -> None:
    desk = Desk()
    waiting = desk.ask(grows=False)
    asked = await desk.asked(1)
    asked.say("def add(a, b):\n    ret")
    await settled()
    if how == "left":
        desk.session.leave()
    elif how == "broken":
        asked.events.put_nowait(None)
    else:
        asked.say("", end="cancelled")
    assert texts(await waiting) == ([] if how == "left" else ["def add(a, b):"])
    again = desk.ask()
    await settled()
    assert texts(await again) == ["def add(a, b):"]


@pytest.mark.parametrize("how", ["left", "broken", "superseded"])
async def test_a_line_that_was_cut_off_is_asked_for_again(how: str) -> None:
    desk = Desk()
    waiting = desk.ask(grows=False)
    asked = await desk.asked(1)
    asked.say("def ad" if how != "superseded" else "")
    await settled()
    if how == "left":
        desk.session.leave()
    elif how == "broken":
        asked.events.put_nowait(None)
    else:
        asked.say("", end="cancelled")
    assert await waiting == []
    again = desk.ask()
    (await desk.asked(2)).say("def add(a, b):", end="line")
    assert texts(await again) == ["def add(a, b):"]


async def test_what_is_typed_elsewhere_is_no_refusal() -> None:
    desk = Desk()
    await shown(desk)
    refused: list[bool] = []
    desk.pace.refused = lambda *, dismissed=False: refused.append(dismissed)  # type: ignore[method-assign]
    desk.before, desk.after = HEAD + TAIL, "\n"  # the cursor goes to the end
    waiting = desk.ask()
    (await desk.asked(len(desk.completer.asked) + 1)).say("", end="stop")
    assert await waiting == []
    assert desk.type("def") == ""  # as the suggestion above begins
    assert desk.type("x") == ""
    assert refused == []


async def test_an_anchor_that_moves_leaves_nothing_shown() -> None:
    desk = Desk()
    long = "x = 1\n" * 100
    await shown(desk, long + "y")
    desk.type(long + "y")
    desk.session.rest(False)
    (await desk.asked(len(desk.completer.asked))).say("", end="stop")
    refused: list[bool] = []
    desk.pace.refused = lambda *, dismissed=False: refused.append(dismissed)  # type: ignore[method-assign]
    desk.type("2")
    assert refused == []


async def test_a_choice_that_nobody_waits_for_hides_nothing() -> None:
    desk = Desk()
    manual = desk.ask(manual=True)
    asked = await desk.asked(1)
    asked.say("def add(a, b):\n")
    await settled()
    newer = desk.ask()
    (offer,) = await newer
    assert await manual == []
    assert desk.session.shown is offer.suggestion


async def test_a_cursor_that_goes_elsewhere_stops_what_is_generated() -> None:
    desk = Desk()
    desk.ask()
    asked = await desk.asked(1)
    desk.before, desk.after = desk.before + TAIL[:3], TAIL[3:]  # within a word: nothing is asked for
    assert await desk.ask() == []
    await settled()
    assert asked.closed


async def test_an_answer_grows_only_where_it_was_given() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    asked.say("def add(a, b):\n    ret")
    (offer,) = await waiting
    desk.before += "def"  # an item of a menu is selected, and the text is the same
    desk.ask()
    await settled()
    assert await desk.session.growth(offer, lambda: True) is None


async def test_a_request_that_is_taken_back_takes_back_no_newer_one() -> None:
    desk = Desk()
    older = desk.ask(deadline=0.0)
    asked = await desk.asked(1)
    newer = desk.ask()
    asyncio.get_running_loop().call_soon(older.cancel)  # once the newer one has begun
    await settled()
    assert not asked.closed
    asked.say("def add(a, b):", end="line")
    assert texts(await newer) == ["def add(a, b):"]
    desk.completer.asked[-1].say("", end="stop")


async def test_the_newest_request_that_is_taken_back_stops_the_engine() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    waiting.cancel()
    await settled()
    assert asked.closed


async def test_a_change_ends_what_waits_even_where_the_client_forgets_to_count() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    desk.type("def")
    desk.version = 0
    asked.say("def add(a, b):", end="line")
    assert await waiting == []


def test_large_documents_are_not_remembered_as_often() -> None:
    known = NewestSuggestions()
    for number in range(100):
        text = f"{number}" + "x" * 1_000_000
        known.add(Suggestion(Spot(OTHER, text, text), ""))
    kept = {id(part): len(part) for spot in known._spots for part in (spot.before, spot.after)}
    assert 0 < sum(kept.values()) < 40_000_000
