"""The slower a server, the later it is asked and the longer it is waited for."""

from itertools import pairwise

from localdflash.lsp.typing_pace import REMOTE_MAX_DELAY_SECONDS, REMOTE_MAX_PATIENCE_SECONDS, ForeignPace


def pace_of(answer: float, gap: float = 0.15) -> tuple[ForeignPace, float]:
    """The pace after many answers of so many seconds and keys so far apart, and the time of the last key."""
    pace, now = ForeignPace(), 100.0
    for _ in range(60):
        pace.answered(answer)
        pace.key(now := now + gap)
    return pace, now


def test_a_quick_server_is_asked_at_once() -> None:
    pace, now = pace_of(0.02)
    assert pace.delay(now) == 0.0
    assert pace.spare


def test_a_slower_server_is_asked_later() -> None:
    delays = [pace.delay(now) for pace, now in map(pace_of, (0.02, 0.2, 0.5, 0.9))]
    assert all(one < other for one, other in pairwise(delays))
    assert max(delays) <= REMOTE_MAX_DELAY_SECONDS


def test_an_unknown_server_is_taken_for_a_slow_one() -> None:
    pace = ForeignPace()
    pace.key(100.0)
    assert pace.delay(100.0) > 0.1
    assert not pace.spare


def test_after_a_pause_there_is_nothing_to_wait_for() -> None:
    pace, now = pace_of(2.0)
    assert pace.delay(now + REMOTE_MAX_DELAY_SECONDS) == 0.0


def test_a_slower_server_is_waited_for_longer() -> None:
    patiences = [pace.patience for pace, _ in map(pace_of, (0.02, 0.2, 1.0))]
    assert all(one < other for one, other in pairwise(patiences))


def test_a_model_that_was_loaded_first_does_not_count_in_full() -> None:
    pace = ForeignPace()
    pace.answered(60.0)
    assert pace.patience <= REMOTE_MAX_PATIENCE_SECONDS
    for _ in range(20):
        pace.answered(0.05)
    assert pace.delay(0.0) == 0.0
    assert pace.patience < 0.2
