"""When to ask the engine, and how sure it must be."""

from random import Random

from localdflash.lsp.typing_pace import LEAST_SURE, LONGEST_DELAY, MOST_SURE, SURE, TypingPace


def typing(pace: TypingPace, gap: float, keys: int = 100) -> float:
    now = 0.0
    for _ in range(keys):
        pace.key(now)
        now += gap
    return now - gap  # of the last key


def test_an_engine_that_is_faster_than_the_typist_is_asked_at_once() -> None:
    pace = TypingPace()
    for _ in range(100):
        pace.answered(0.05)
    assert pace.delay(typing(pace, 0.15)) == 0


def test_a_slow_engine_is_asked_once_typing_pauses() -> None:
    pace = TypingPace()
    for _ in range(100):
        pace.answered(1.5)
    last = typing(pace, 0.15)
    assert 0.05 < pace.delay(last) < 0.1
    assert pace.delay(last + 0.2) == 0
    assert pace.delay(typing(TypingPace(), 0.9)) <= LONGEST_DELAY


def test_pauses_are_no_typing() -> None:
    pace = TypingPace()
    for _ in range(100):
        pace.answered(0.18)
    last = typing(pace, 0.15)
    assert pace.delay(last) > 0
    pace.key(last + 600)  # after a coffee
    assert pace.delay(last + 600) > 0


def asked_for(pace: TypingPace) -> float:
    """The least confidence that is enough."""
    return min(step / 1000 for step in range(1001) if pace.confident(step / 1000))


def test_refusals_ask_for_more_confidence_and_acceptance_for_less() -> None:
    pace = TypingPace()
    assert asked_for(pace) == SURE
    pace.refused()
    first = asked_for(pace)
    pace.refused(dismissed=True)
    assert asked_for(pace) - first > 2 * (first - SURE) > 0
    pace.accepted()
    assert asked_for(pace) < SURE
    for _ in range(1000):
        pace.refused()
    assert asked_for(pace) == MOST_SURE
    for _ in range(1000):
        pace.accepted()
    assert asked_for(pace) == LEAST_SURE


def test_the_confidence_asked_for_settles_where_the_wanted_share_is_accepted() -> None:
    pace, random = TypingPace(), Random(1)
    shown = accepted = 0
    for number in range(20_000):
        confidence = random.random()
        if pace.confident(confidence):
            taken = random.random() < confidence / 3  # this model is three times as sure as it should be
            if number > 2_000:
                shown, accepted = shown + 1, accepted + taken
            pace.accepted() if taken else pace.refused()
    assert 0.1 < accepted / shown < 0.2


def test_an_engine_that_cannot_say_how_sure_it_is_is_believed() -> None:
    assert TypingPace().confident(None)


def test_what_is_typed_in_agreement_makes_a_suggestion_likelier() -> None:
    pace = TypingPace()
    assert not pace.confident(SURE / 2)
    assert pace.confident(SURE / 2, agreed=3)
    assert not pace.confident(0.0)
