"""When to ask the engine, and how sure it must be."""

from itertools import pairwise

from localdflash.lsp.typing_pace import (
    MAX_CONFIDENCE,
    MAX_DELAY_SECONDS,
    MIN_CONFIDENCE,
    REMOTE_MAX_DELAY_SECONDS,
    START_CONFIDENCE,
    RemotePace,
    TypingPace,
)


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


def asked_for(pace: TypingPace) -> float:
    """The least confidence that is enough."""
    return min(step / 1000 for step in range(1001) if pace.is_confident(step / 1000))


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


def pace_of(answer: float, gap: float = 0.15) -> tuple[RemotePace, float]:
    """The pace after many answers of so many seconds and keys so far apart, and the time of the last key."""
    pace, now = RemotePace(), 100.0
    for _ in range(60):
        pace.answered(answer)
        pace.key(now := now + gap)
    return pace, now


def test_a_slower_server_is_asked_later_and_awaited_longer() -> None:
    paces = [pace_of(answer) for answer in (0.02, 0.2, 0.5, 0.9)]
    delays, patiences = [pace.delay(now) for pace, now in paces], [pace.patience for pace, _ in paces]
    assert delays[0] == 0.0
    assert all(one < other for values in (delays, patiences) for one, other in pairwise(values))
    assert max(delays) <= REMOTE_MAX_DELAY_SECONDS
    assert [pace.may_generate_ahead for pace, _ in paces] == [True, False, False, False]
    pace, now = pace_of(2.0)
    assert pace.delay(now + REMOTE_MAX_DELAY_SECONDS) == 0.0
