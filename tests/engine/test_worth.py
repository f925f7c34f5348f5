"""Looking for drafts goes on where it pays; the other way is tried now and then; a draft that pays wakes it."""

import pytest

from localdflash.engine.worth import LOOK, REST, STREAK, Worth

PLAIN_MS, DEAR, CHEAP = 1.0, 0.5, 0.001


def run(worth: Worth, steps: int, tokens: int, ms: float, looking_ms: float = DEAR) -> list[bool]:
    """Steps that take PLAIN_MS at rest; which of them looked."""
    looked = []
    for _ in range(steps):
        looked.append(worth.looks(PLAIN_MS))
        if looked[-1]:
            worth.looked(tokens, ms, looking_ms)
        else:
            worth.rested(PLAIN_MS)
    return looked


@pytest.mark.parametrize(("tokens", "ms"), [(1, 1.5), (2, 2.5)])
def test_looking_that_does_not_pay_is_left_but_for_a_try(tokens: int, ms: float) -> None:
    worth = Worth()
    run(worth, 5 * LOOK, tokens, ms)
    assert run(worth, 10 * LOOK, tokens, ms).count(True) == 10


def test_looking_that_pays_goes_on_but_for_a_rest() -> None:
    worth = Worth()
    run(worth, 5 * REST, 2, 1.5)
    assert run(worth, 10 * REST, 2, 1.5).count(False) == 10


def test_where_looking_costs_nothing_every_step_looks() -> None:
    assert all(run(Worth(), 200, 1, 1.001, CHEAP))


def test_a_draft_that_pays_makes_the_next_steps_look() -> None:
    worth = Worth()
    run(worth, 10 * LOOK, 1, 1.5)
    while not worth.looks(PLAIN_MS):
        worth.rested(PLAIN_MS)
    worth.looked(4, 2.0, DEAR)
    assert all(run(worth, STREAK, 1, 1.5))


def test_a_text_that_turns_to_copying_is_found_out() -> None:
    worth = Worth()
    run(worth, 20 * LOOK, 1, 1.5)
    looked = run(worth, 10 * LOOK, 8, 3.0)
    assert looked.count(True) > 7 * LOOK


def test_one_interruption_decides_nothing() -> None:
    worth = Worth()
    run(worth, 5 * REST, 2, 1.5)
    while not worth.looks(PLAIN_MS):
        worth.rested(PLAIN_MS)
    worth.looked(2, 500.0, DEAR)
    assert run(worth, 10, 2, 1.5).count(True) >= 9
