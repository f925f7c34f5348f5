"""Acceptance: every committed token is the target's own draw along the draft."""

import numpy as np
import pytest

from localdflash.engine.accept import accept, accept_greedy
from localdflash.engine.draft import Draft
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

V = 10


def chain(*tokens: int) -> Draft:
    return Draft("test", tokens, [0.5] * len(tokens))


@pytest.mark.parametrize(
    ("draft", "choices", "limit", "ends", "committed"),
    [
        ((), (4,), 99, (), [4]),  # nothing drafted: the target's own token
        ((4, 5, 6), (4, 5, 6, 7), 99, (), [4, 5, 6, 7]),  # all right: a bonus on top
        ((4, 5, 6), (9, 5, 6, 7), 99, (), [9]),  # wrong at once, whatever fits later
        ((4, 5, 6), (4, 5, 8, 7), 99, (), [4, 5, 8]),
        *(((4, 5, 6), (4, 5, 6, 7), limit, (), [4, 5, 6, 7][:limit]) for limit in range(1, 6)),
        ((4, 5, 6), (4, 5, 6, 7), 99, (5, 7), [4, 5]),  # nothing follows an end, even if it was drafted
        ((4, 5, 6), (4, 5, 6, 7), 99, (7,), [4, 5, 6, 7]),
        ((), (5,), 99, (5,), [5]),
    ],
)
def test_a_draft_is_committed_up_to_the_first_difference_the_limit_or_an_end(
    draft: tuple[int, ...], choices: tuple[int, ...], limit: int, ends: tuple[int, ...], committed: list[int]
) -> None:
    logits = np.eye(V, dtype=np.float32)[list(choices)]
    sampler = Sampler(SamplingParams())
    assert accept(chain(*draft), logits, sampler, [1, 2, 3], limit, frozenset(ends)) == committed
    assert accept_greedy(chain(*draft), choices, limit, frozenset(ends)) == committed


def test_the_penalty_sees_the_tokens_of_the_path_that_are_not_committed_yet() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    logits = np.zeros((3, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    # Row 0: 4. Row 1: 4 was committed on the way, so 5. Row 2: both seen; 4 again.
    assert accept(chain(4, 5), logits, sampler, [1], 99, frozenset()) == [4, 5, 4]
    assert accept(chain(4, 4), logits, sampler, [1], 99, frozenset()) == [4, 5]
