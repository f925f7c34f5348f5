"""What a session suggests while somebody types, by an engine whose every event the test gives."""

import asyncio
from typing import cast

import pytest

from tests.lsp.desk import HEAD, TAIL, Desk, settled, texts


async def test_what_is_sent_is_cut_at_the_start_of_the_line() -> None:
    desk = Desk()
    desk.type("def a")
    waiting = desk.ask()
    asked = await desk.asked(1)
    assert asked.body["prefix"] == HEAD
    assert asked.body["middle"] == "def a"
    assert asked.body["suffix"] == TAIL
    asked.say("dd(a, b):", end="line")
    assert texts(await waiting) == ["dd(a, b):"]


async def test_what_is_typed_along_needs_no_request() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    asked.say("def add(a, b):", end="line")
    assert texts(await waiting) == ["def add(a, b):"]
    await desk.asked(2)  # what comes after it is generated ahead
    for typed, left in [("d", "ef add(a, b):"), ("ef ad", "d(a, b):"), ("d(a, b)", ":")]:
        desk.type(typed)
        assert texts(await desk.ask()) == [left]
    assert len(desk.completer.asked) == 2
    assert not desk.completer.asked[1].closed


async def test_what_was_generated_ahead_is_there_after_accepting() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):", end="line")
    await waiting
    ahead = await desk.asked(2)
    assert ahead.body["middle"] == "def add(a, b):"
    assert ahead.body["prefix"] == HEAD  # only the end of the prompt is new
    ahead.say("\n    return a + b", end="block")
    assert desk.type("def add(a, b):") == "def add(a, b):"
    assert texts(await desk.ask()) == ["\n    return a + b"]


async def test_a_running_generation_that_agrees_goes_on() -> None:
    desk = Desk()
    first = desk.ask()
    asked = await desk.asked(1)
    desk.type("def ")
    second = desk.ask()
    assert await first == []  # at once, before the engine said anything
    asked.say("def add")
    desk.type("ad")
    third = desk.ask()
    assert await second == []
    asked.say("(a, b):", end="line")
    assert texts(await third) == ["d(a, b):"]
    assert desk.completer.asked[0] is asked


async def test_a_key_that_disagrees_stops_the_generation_before_anything_is_asked() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    asked.say("def add")
    await settled()
    desk.type("c")
    await settled()
    assert asked.closed
    assert await waiting == []
    again = desk.ask()
    other = await desk.asked(2)
    assert other.body["middle"] == "c"
    other.say("lass A:", end="line")
    assert texts(await again) == ["lass A:"]
    assert desk.completer.most == 1


async def test_typing_ahead_of_a_generation_that_turns_out_to_disagree_asks_again() -> None:
    desk = Desk()
    first = desk.ask()
    asked = await desk.asked(1)
    desk.type("class")
    waiting = desk.ask()
    await first
    asked.say("def add(a, b):")
    other = await desk.asked(2)
    assert other.body["middle"] == "class"
    other.say(" A:", end="line")
    assert texts(await waiting) == [" A:"]
    assert desk.completer.most == 1


async def test_a_refused_text_becomes_a_draft_and_is_not_shown_again() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):", end="line")
    (offer,) = await waiting
    ahead = await desk.asked(2)
    desk.session.dismiss(offer.suggestion.name)
    await settled()
    assert ahead.closed
    assert await desk.ask() == []
    desk.type("x")
    desk.ask()
    asked = await desk.asked(3)
    assert "def add(a, b):" in cast(list[str], asked.body["copies"])
    assert TAIL in cast(list[str], asked.body["copies"])


async def test_what_was_dismissed_does_not_come_back_in_other_words() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):", end="line")
    (offer,) = await waiting
    desk.session.dismiss(offer.suggestion.name)
    desk.type("d")
    again = desk.ask()
    count = len(desk.completer.asked)
    await settled()
    if len(desk.completer.asked) > count:
        desk.completer.asked[-1].say("ef add", end="line")
    assert await again == []


async def test_what_a_client_drops_at_a_key_that_agrees_is_not_dismissed() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):\n    return a + b", end="block")
    (offer,) = await waiting
    desk.type("def add(a, b):\n    ")
    desk.session.dismiss(offer.suggestion.name)
    assert texts(await desk.ask()) == ["return a + b"]


async def test_a_bracket_that_the_editor_closes_is_typed_along() -> None:
    desk = Desk()
    desk.type("value = add")
    waiting = desk.ask()
    (await desk.asked(1)).say("(1, 2)", end="line")
    await waiting
    desk.type_closed("(", ")")
    assert texts(await desk.ask()) == ["1, 2)"]
    desk.type("1, ")
    assert texts(await desk.ask()) == ["2)"]
    desk.closed = ""
    desk.type("2)")  # the editor types over its own bracket
    ahead = "value = add(1, 2)"  # what would follow
    assert [asked.body["middle"] for asked in desk.completer.asked] == ["value = add", ahead]


async def test_accepting_what_closes_a_bracket_again_is_typed_along() -> None:
    desk = Desk()
    desk.type("value = add")
    desk.type_closed("(", ")")
    waiting = desk.ask()
    asked = await desk.asked(1)
    assert (asked.body["middle"], asked.body["closed"], asked.body["suffix"]) == ("value = add(", ")", desk.after)
    asked.say("1, 2).real", end="line")
    assert texts(await waiting) == ["1, 2).real"]
    desk.closed = ""
    assert desk.type("1, 2).real") == "1, 2).real"


async def test_whole_lines_are_shown_first_and_grow() -> None:
    desk = Desk()
    waiting = desk.ask()
    asked = await desk.asked(1)
    asked.say("def add(a")
    await settled()
    assert not waiting.done()
    asked.say(", b):\n    ret")
    (offer,) = await waiting
    assert offer.text == "def add(a, b):"
    growth = asyncio.create_task(desk.session.growth(offer, lambda: True))
    await settled()
    assert not growth.done()
    asked.say("urn a + b", end="block")
    assert await growth == "def add(a, b):\n    return a + b"


async def test_clients_that_cannot_grow_a_text_wait_for_all_of_it() -> None:
    desk = Desk()
    waiting = desk.ask(grows=False)
    asked = await desk.asked(1)
    asked.say("def add(a, b):\n    ret")
    await settled()
    assert not waiting.done()
    asked.say("urn a + b", end="block")
    assert texts(await waiting) == ["def add(a, b):\n    return a + b"]


async def test_after_the_deadline_words_are_better_than_nothing() -> None:
    desk = Desk()
    waiting = desk.ask(deadline=0.02)
    asked = await desk.asked(1)
    asked.say("return first + sec")
    assert texts(await waiting) == ["return first +"]
    late = asyncio.create_task(desk.session.growth((await desk.ask(deadline=0.0))[0], lambda: True))
    asked.say("ond", end="line")
    assert await late == "return first + second"


async def test_an_unsure_text_is_shown_only_to_who_asks() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("def add(a, b):", end="line", confidence=0.01)
    assert await waiting == []
    manual = desk.ask(manual=True)
    asked = await desk.asked(2)
    assert asked.body["count"] == 3
    for index, text in enumerate(["one()", "two()", "one()"]):
        asked.say(text, end="line", confidence=0.01, index=index)
    assert texts(await manual) == ["one()", "two()"]


async def test_a_word_of_another_choice_keeps_that_choice() -> None:
    desk = Desk()
    manual = desk.ask(manual=True)
    asked = await desk.asked(1)
    for index, text in enumerate(["one(1)", "two(2)", "three(3)"]):
        asked.say(text, end="line", index=index)
    assert texts(await manual) == ["one(1)", "two(2)", "three(3)"]
    assert desk.type("three") == "three"
    assert texts(await desk.ask()) == ["(3)"]
    assert len(desk.completer.asked) == 1


@pytest.mark.parametrize(("end", "why"), [("stop", "nothing to add"), ("failed", "")])
async def test_who_asks_and_gets_nothing_is_told_why(end: str, why: str) -> None:
    desk = Desk()
    manual = desk.ask(manual=True)
    asked = await desk.asked(1)
    for index in range(3):
        asked.say("", end=end, index=index)
    assert await manual == []
    assert why in desk.session.silence
    assert bool(desk.session.silence) == bool(why)


@pytest.mark.parametrize(("before", "after"), [("value = na", "me + 1\n"), ("", ""), ("x", "\n")])
async def test_within_a_word_and_in_an_empty_document_there_is_silence(before: str, after: str) -> None:
    desk = Desk()
    desk.before, desk.after = before, after
    assert await desk.ask() == []
    assert not desk.completer.asked


async def test_nothing_is_known_once_and_not_asked_again() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("", end="stop")
    assert await waiting == []
    assert await desk.ask() == []
    assert len(desk.completer.asked) == 1


async def test_slow_answers_wait_for_a_pause_in_typing() -> None:
    desk = Desk()
    for _ in range(100):
        desk.pace.answered(3.0)
    loop = asyncio.get_running_loop()
    desk.pace.key(loop.time())
    desk.type("d")
    waiting = desk.ask()
    await settled()
    assert not desk.completer.asked
    desk.type("e")
    assert await waiting == []
    began = loop.time()
    desk.ask()
    while not desk.completer.asked:
        await asyncio.sleep(0.005)
    assert loop.time() - began < 0.3


async def test_the_next_prompt_begins_nearer_when_nobody_types() -> None:
    desk = Desk()
    waiting = desk.ask()
    (await desk.asked(1)).say("", end="stop")
    await waiting
    long = "x = 1\n" * 100
    desk.type(long)
    desk.session.rest(False)
    warm = await desk.asked(2)
    assert warm.body["max_tokens"] == 0
    assert warm.body["prefix"] == HEAD + long
    assert warm.body["middle"] == ""


async def test_many_keys_and_never_two_generations() -> None:
    desk = Desk()
    waiting = []
    for number in range(300):
        desk.type("abc\nd("[number % 6])
        waiting.append(desk.ask())
        if number % 3 == 0:
            await asyncio.sleep(0)
        if number % 7 == 0 and desk.completer.asked:
            desk.completer.asked[-1].say("b", end="line")
        if number % 11 == 0:
            waiting[-1].cancel()
    await settled()
    desk.session.leave()
    desk.generator.stop()
    await asyncio.gather(*waiting, return_exceptions=True)
    await settled()
    assert desk.completer.most == 1
    assert desk.completer.live == 0
