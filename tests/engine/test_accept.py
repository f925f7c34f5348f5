"""Acceptance: every committed token is the target's own draw along the draft."""

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.engine.accept import accept
from localdflash.engine.draft import EMPTY_DRAFT, MAX_DRAFT_TOKENS, Draft
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

V = 10


def rows(*tokens: int) -> NDArray[np.float32]:
    """Logits whose best tokens are these."""
    return np.eye(V, dtype=np.float32)[list(tokens)]


def chain(*tokens: int) -> Draft:
    return Draft("test", tokens, [0.5] * len(tokens))


def greedy(draft: Draft, logits: NDArray[np.float32], limit: int = 99, ends: frozenset[int] = frozenset()) -> list[int]:
    return accept(draft, logits, Sampler(SamplingParams()), [1, 2, 3], limit, ends)


@pytest.mark.parametrize(
    ("draft", "choices", "committed"),
    [
        ((), (4,), [4]),  # nothing drafted: the target's own token
        ((4, 5, 6), (4, 5, 6, 7), [4, 5, 6, 7]),  # all right: a bonus on top
        ((4, 5, 6), (9, 5, 6, 7), [9]),  # wrong at once, whatever fits later
        ((4, 5, 6), (4, 5, 8, 7), [4, 5, 8]),
    ],
)
def test_a_chain_is_committed_up_to_the_first_difference(
    draft: tuple[int, ...], choices: tuple[int, ...], committed: list[int]
) -> None:
    assert greedy(chain(*draft), rows(*choices)) == committed


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_no_more_than_the_limit_is_committed(limit: int) -> None:
    assert greedy(chain(4, 5, 6), rows(4, 5, 6, 7), limit) == [4, 5, 6, 7][:limit]


def test_nothing_follows_an_end_even_if_it_was_drafted() -> None:
    assert greedy(chain(4, 5, 6), rows(4, 5, 6, 7), ends=frozenset({5, 7})) == [4, 5]
    assert greedy(chain(4, 5, 6), rows(4, 5, 6, 7), ends=frozenset({7})) == [4, 5, 6, 7]
    assert greedy(EMPTY_DRAFT, rows(5), ends=frozenset({5})) == [5]


def test_the_penalty_sees_the_tokens_of_the_path_that_are_not_committed_yet() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    logits = np.zeros((3, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    # Row 0: 4. Row 1: 4 was committed on the way, so 5. Row 2: both seen; 4 again.
    assert accept(chain(4, 5), logits, sampler, [1], 99, frozenset()) == [4, 5, 4]
    assert accept(chain(4, 4), logits, sampler, [1], 99, frozenset()) == [4, 5]


def test_the_penalty_window_slides_along_the_path() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0, penalty_window=1))
    logits = np.zeros((4, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    assert accept(chain(4, 5, 4), logits, sampler, [1, 4, 9], 99, frozenset()) == [4, 5, 4, 5]


def test_one_uniform_number_is_used_per_committed_token() -> None:
    logits = np.zeros((1, V), np.float32)
    plain = Sampler(SamplingParams(1.0, seed=5))
    tokens = [plain.sample(logits[0], []) for _ in range(9)]
    drafting = Sampler(SamplingParams(1.0, seed=5))
    committed: list[int] = []
    while len(committed) < 9:
        proposal = chain(*tokens[len(committed) : len(committed) + 2], 0, 0)
        committed += accept(proposal, np.zeros((5, V), np.float32), drafting, committed, 9, frozenset())
    assert committed[:9] == tokens


def test_prefixes_of_a_draft_are_drafts() -> None:
    part = chain(4, 5, 6).first(2)
    assert (part.drafter, list(part.tokens), list(part.confidence), len(part)) == ("test", [4, 5], [0.5, 0.5], 2)
    assert not chain(4, 5, 6).first(0)
    assert not EMPTY_DRAFT
    assert MAX_DRAFT_TOKENS >= 64
