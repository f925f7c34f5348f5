"""When to ask the engine, and how sure it must be."""

from random import Random

from localdflash.lsp.typing_pace import MAX_CONFIDENCE, MAX_DELAY_SECONDS, MIN_CONFIDENCE, START_CONFIDENCE, TypingPace


def typing(pace: TypingPace, gap: float, keys: int = 100) -> float:
    now = 0.0
    for _ in range(keys):
        pace.key(now)
        now += gap
    return now - gap  # of the last key


def answering(seconds: float) -> TypingPace:
    pace = TypingPace()
    for _ in range(100):
        pace.answered(seconds)
    return pace


def test_a_fast_engine_is_asked_at_once_and_a_slow_one_in_a_pause() -> None:
    fast, slow = answering(0.05), answering(1.5)
    assert fast.delay(typing(fast, 0.15)) == 0
    last = typing(slow, 0.15)
    assert 0.05 < slow.delay(last) < 0.1
    assert slow.delay(last + 0.2) == 0
    assert slow.delay(typing(TypingPace(), 0.9)) <= MAX_DELAY_SECONDS


def test_long_pauses_do_not_count_as_typing() -> None:
    pace = answering(0.18)
    last = typing(pace, 0.15)
    assert pace.delay(last) > 0
    pace.key(last + 600)
    assert pace.delay(last + 600) > 0


def asked_for(pace: TypingPace) -> float:
    """The least confidence that is enough."""
    return min(step / 1000 for step in range(1001) if pace.confident(step / 1000))


def test_refusals_ask_for_more_confidence_and_acceptance_for_less() -> None:
    pace = TypingPace()
    assert asked_for(pace) == START_CONFIDENCE
    pace.refused()
    first = asked_for(pace)
    pace.refused(dismissed=True)
    assert asked_for(pace) - first > 2 * (first - START_CONFIDENCE) > 0
    pace.accepted()
    assert asked_for(pace) < START_CONFIDENCE
    for _ in range(1000):
        pace.refused()
    assert asked_for(pace) == MAX_CONFIDENCE
    for _ in range(1000):
        pace.accepted()
    assert asked_for(pace) == MIN_CONFIDENCE


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


def test_confidence_grows_with_agreeing_characters_and_may_be_unknown() -> None:
    pace = TypingPace()
    assert not pace.confident(START_CONFIDENCE / 2)
    assert pace.confident(START_CONFIDENCE / 2, agreed=3)
    assert not pace.confident(0.0)
    assert pace.confident(None)
