"""The slower a server, the later it is asked and the longer its answer is awaited."""

from itertools import pairwise

from localdflash.lsp.typing_pace import REMOTE_MAX_DELAY_SECONDS, REMOTE_MAX_PATIENCE_SECONDS, RemotePace


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
    assert [pace.spare for pace, _ in paces] == [True, False, False, False]
    pace, now = pace_of(2.0)
    assert pace.delay(now + REMOTE_MAX_DELAY_SECONDS) == 0.0


def test_an_unknown_server_counts_as_slow() -> None:
    pace = RemotePace()
    pace.key(100.0)
    assert pace.delay(100.0) > 0.1
    assert not pace.spare


def test_the_time_to_load_a_model_hardly_counts() -> None:
    pace = RemotePace()
    pace.answered(60.0)
    assert pace.patience <= REMOTE_MAX_PATIENCE_SECONDS
    for _ in range(20):
        pace.answered(0.05)
    assert pace.delay(0.0) == 0.0
    assert pace.patience < 0.2
