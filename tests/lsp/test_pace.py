"""When to ask the engine, and how sure it must be."""

from localdflash.lsp.pace import FORGETS, LONGEST_DELAY, SURE, SUREST, Pace


def typing(pace: Pace, gap: float, keys: int = 100) -> float:
    now = 0.0
    for _ in range(keys):
        pace.key(now)
        now += gap
    return now - gap  # of the last key


def test_an_engine_that_is_faster_than_the_typist_is_asked_at_once() -> None:
    pace = Pace()
    for _ in range(100):
        pace.answered(0.05)
    assert pace.delay(typing(pace, 0.15)) == 0


def test_a_slow_engine_is_asked_once_typing_pauses() -> None:
    pace = Pace()
    for _ in range(100):
        pace.answered(1.5)
    last = typing(pace, 0.15)
    assert 0.05 < pace.delay(last) < 0.1
    assert pace.delay(last + 0.2) == 0
    assert pace.delay(typing(Pace(), 0.9)) <= LONGEST_DELAY


def test_pauses_are_no_typing() -> None:
    pace = Pace()
    for _ in range(100):
        pace.answered(0.18)
    last = typing(pace, 0.15)
    assert pace.delay(last) > 0
    pace.key(last + 600)  # after a coffee
    assert pace.delay(last + 600) > 0


def test_refusals_ask_for_more_confidence_until_something_is_accepted_or_time_passes() -> None:
    pace = Pace()
    assert pace.confident(SURE, 0)
    assert not pace.confident(SURE - 0.01, 0)
    for now in range(20):
        pace.refused(now)
    assert not pace.confident(SUREST - 0.01, 20)
    assert pace.confident(SUREST, 20)
    assert pace.confident(SURE, 20 + FORGETS)
    pace.refused(21)
    pace.accepted()
    assert pace.confident(SURE, 21)


def test_an_engine_that_cannot_say_how_sure_it_is_is_believed() -> None:
    assert Pace().confident(None, 0)
