"""Suggestions of a session while a user types, from an engine whose every event the test gives."""

import asyncio
from typing import cast

import pytest

from localdflash.lsp import suggestions
from localdflash.lsp.session import Cursor
from tests.lsp.desk import ADD, HEAD, TAIL, Desk, Request, settled, texts

OTHER = "file:///b.py"


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []
    monkeypatch.setattr(desk.pace, "refused", lambda *, dismissed=False: found.append(dismissed))
    return found


async def test_text_typed_along_needs_no_request(desk: Desk) -> None:
    assert (await desk.shown()).text == ADD
    ahead = await desk.asked(2)  # what comes after it
    for typed, left in [("d", "ef add(a, b):"), ("ef ad", "d(a, b):"), ("d(a, b)", ":")]:
        desk.type(typed)
        assert texts(await desk.ask()) == [left]
    assert len(desk.engine.requests) == 2
    assert not ahead.closed


async def test_text_generated_ahead_is_there_after_accepting(desk: Desk) -> None:
    await desk.shown()
    ahead = await desk.asked(2)
    assert (ahead.body["prefix"], ahead.body["middle"]) == (HEAD, ADD)  # only the end of the prompt is new
    ahead.say("\n    return a + b", end="block")
    assert desk.type(ADD) == ADD
    assert texts(await desk.ask()) == ["\n    return a + b"]


async def test_a_running_generation_that_agrees_continues(desk: Desk) -> None:
    first = desk.ask()
    asked = await desk.asked(1)
    desk.type("def ")
    second = desk.ask()
    assert await first == []  # at once, before the engine sent anything
    asked.say("def add")
    desk.type("ad")
    third = desk.ask()
    assert await second == []
    asked.say("(a, b):", end="line")
    assert texts(await third) == ["d(a, b):"]
    assert desk.engine.requests[0] is asked


async def test_a_refused_text_becomes_a_draft_and_is_not_shown_again(desk: Desk) -> None:
    offer = await desk.shown()
    ahead = await desk.asked(2)
    desk.session.dismiss(offer.suggestion.name)
    await settled()
    assert ahead.closed
    assert await desk.ask() == []
    desk.type("x")
    desk.ask()
    assert {ADD, TAIL} <= set(cast(list[str], (await desk.asked(3)).body["copies"]))


async def test_after_the_deadline_words_are_shown(desk: Desk) -> None:
    waiting = desk.ask(deadline=0.02)
    asked = await desk.asked(1)
    asked.say("return first + sec")
    assert texts(await waiting) == ["return first +"]
    late = asyncio.create_task(desk.session.growth((await desk.ask(deadline=0.0))[0], lambda: True))
    asked.say("ond", end="line")
    assert await late == "return first + second"


async def test_an_impatient_request_without_a_word_by_its_deadline_gets_nothing(desk: Desk) -> None:
    assert await desk.ask(deadline=0.01, patient=False) == []
    (going_on,) = desk.engine.requests
    going_on.say(ADD, end="line")
    assert texts(await desk.ask()) == [ADD]


async def test_a_request_for_an_old_text_does_not_end_the_newest_one(desk: Desk) -> None:
    old = Cursor(desk.before, desk.after, manual=False, current=lambda: False)
    desk.type("x")
    newest = desk.ask()
    asked = await desk.asked(1)
    assert await desk.session.offers(old) == []  # its context took long to find
    asked.say(ADD, end="line")
    assert texts(await newest) == [ADD]


async def test_a_text_of_low_confidence_is_shown_on_request_only(desk: Desk) -> None:
    waiting = desk.ask()
    (await desk.asked(1)).say(ADD, end="line", confidence=0.01)
    assert await waiting == []
    manual = desk.ask(manual=True)
    asked = await desk.asked(2)
    assert asked.body["count"] == 3
    for index, text in enumerate(["one()", "two()", "one()"]):
        asked.say(text, end="line", confidence=0.01, index=index)
    assert texts(await manual) == ["one()", "two()"]


async def test_requested_texts_are_offered_the_best_first_and_unsound_ones_last(desk: Desk) -> None:
    manual = desk.ask(manual=True)
    asked = await desk.asked(1)
    for index, (text, end, score) in enumerate(
        [("one()", "stop", -3.0), ("(", "unsound", -1.5), ("two()", "stop", -2.0)]
    ):
        asked.say(text, end=end, index=index, score=score)
    assert texts(await manual) == ["two()", "one()", "("]
    desk.type("x")
    desk.before = desk.before.removesuffix("x")
    desk.type("")
    assert texts(await desk.ask()) == ["two()"]  # again, without a request


@pytest.mark.parametrize(("end", "why"), [("stop", "nothing to add"), ("failed", "")])
async def test_a_request_by_hand_without_an_answer_has_a_reason(desk: Desk, end: str, why: str) -> None:
    manual = desk.ask(manual=True)
    asked = await desk.asked(1)
    for index in range(3):
        asked.say("", end=end, index=index)
    assert await manual == []
    assert why in desk.session.silence_reason
    assert bool(desk.session.silence_reason) == bool(why)
    obsolete = desk.ask(manual=True)
    await desk.asked()
    desk.type("x")
    assert await obsolete == []
    assert desk.session.silence_reason == ""


async def test_the_anchor_moves_nearer_in_a_pause(desk: Desk, refused: list[bool]) -> None:
    long = "x = 1\n" * 100
    await desk.shown(long + "y")
    await settled()
    desk.type(long + "y")
    desk.engine.requests[-1].say("", end="stop")
    await settled()
    desk.session.prepare_prompt(False)
    warm = await desk.asked(3)
    assert [warm.body[name] for name in ("max_tokens", "prefix", "middle")] == [0, HEAD + long, "y"]
    warm.say("", end="stop")
    desk.type("2")
    assert refused == []  # nothing was left shown


async def test_many_keys_never_run_two_generations(desk: Desk) -> None:
    waiting = []
    for number in range(300):
        desk.type("abc\nd("[number % 6])
        waiting.append(desk.ask())
        if number % 3 == 0:
            await asyncio.sleep(0)
        if number % 7 == 0 and desk.engine.requests:
            desk.engine.requests[-1].say("b", end="line")
        if number % 11 == 0:
            waiting[-1].cancel()
    await settled()
    desk.session.end_requests()
    desk.generator.stop()
    await asyncio.gather(*waiting, return_exceptions=True)
    await settled()
    assert (desk.engine.most, desk.engine.live) == (1, 0)


async def cut_off(desk: Desk, asked: Request, how: str) -> None:
    """End a generation before its text ends."""
    await settled()
    if how == "left":
        desk.session.end_requests()
    elif how == "broken":
        asked.events.put_nowait(None)
    else:
        asked.say("", end="cancelled")


@pytest.mark.parametrize("how", ["left", "broken", "superseded"])
async def test_a_line_that_was_cut_off_is_asked_for_again(desk: Desk, how: str) -> None:
    waiting = desk.ask(grows=False)
    asked = await desk.asked(1)
    asked.say("def ad" if how != "superseded" else "")
    await cut_off(desk, asked, how)
    assert await waiting == []
    assert (await desk.shown()).text == ADD


async def test_a_document_that_the_user_left_has_no_suggestions_in_memory(desk: Desk) -> None:
    await desk.shown()
    await desk.asked(2)  # the text after the shown suggestion
    desk.session.end_requests()
    desk.ask()
    assert (await desk.asked(3)).body["middle"] == "", "the text at the cursor is requested again"


def test_the_newest_suggestions_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "MAX_ANCHOR_CHARS", 20)
    newest = suggestions.NewestSuggestions()
    first, second = (suggestions.Suggestion(suggestions.Anchor("a", letter * 8, ""), "", "x") for letter in "ab")
    for one in (first, second):
        newest.add(one)
    assert [newest.find(one.anchor, "") for one in (first, second)] == [first, second]
    newest.add(suggestions.Suggestion(suggestions.Anchor("a", "c" * 8, ""), "", "x"))
    assert [newest.find(one.anchor, "") for one in (first, second)] == [None, second]
