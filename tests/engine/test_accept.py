"""Acceptance: every committed token is the target's own draw along its path, for chains and trees."""

import numpy as np
import pytest
from numpy.typing import NDArray

from localdflash.engine.accept import accept
from localdflash.engine.draft import MAX_NODES, NOTHING, Draft
from localdflash.engine.sampling import Sampler
from localdflash.engine.sampling_params import SamplingParams

V = 10


def rows(*tokens: int) -> NDArray[np.float32]:
    """Logits whose best tokens are these."""
    return np.eye(V, dtype=np.float32)[list(tokens)]


def chain(*tokens: int) -> Draft:
    return Draft.chain("test", tokens, [0.5] * len(tokens))


def greedy(
    draft: Draft, logits: NDArray[np.float32], limit: int = 99, ends: frozenset[int] = frozenset()
) -> tuple[list[int], list[int]]:
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
    tokens, kept = greedy(chain(*draft), rows(*choices))
    assert tokens == committed
    assert kept == list(range(len(committed)))


# Anchor -> 4 (node 0), 5 (node 1); 4 -> 6 (node 2), 5 -> 6 (node 3); node 3 -> 7 (node 4)
TREE = Draft("test", (4, 5, 6, 6, 7), (-1, -1, 0, 1, 3), (0.5,) * 5)


@pytest.mark.parametrize(
    ("choices", "committed", "kept"),
    [
        ((4, 6, 0, 8, 0, 0), [4, 6, 8], [0, 1, 3]),  # rows: anchor, node 0, node 2
        ((5, 0, 6, 0, 7, 9), [5, 6, 7, 9], [0, 2, 4, 5]),
        ((5, 0, 8, 0, 0, 0), [5, 8], [0, 2]),
        ((6, 0, 0, 0, 0, 0), [6], [0]),  # 6 is drafted, but not as a child of the anchor
    ],
)
def test_a_tree_is_walked_along_the_targets_own_choices(
    choices: tuple[int, ...], committed: list[int], kept: list[int]
) -> None:
    assert greedy(TREE, rows(*choices)) == (committed, kept)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_no_more_than_the_limit_is_committed(limit: int) -> None:
    tokens, kept = greedy(chain(4, 5, 6), rows(4, 5, 6, 7), limit)
    assert tokens == [4, 5, 6, 7][:limit]
    assert len(kept) == len(tokens)


def test_nothing_follows_an_end_even_if_it_was_drafted() -> None:
    assert greedy(chain(4, 5, 6), rows(4, 5, 6, 7), ends=frozenset({5, 7})) == ([4, 5], [0, 1])
    assert greedy(chain(4, 5, 6), rows(4, 5, 6, 7), ends=frozenset({7})) == ([4, 5, 6, 7], [0, 1, 2, 3])
    assert greedy(NOTHING, rows(5), ends=frozenset({5})) == ([5], [0])


def test_the_penalty_sees_the_tokens_of_the_path_that_are_not_committed_yet() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0))
    logits = np.zeros((3, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    # Row 0: 4. Row 1: 4 was committed on the way, so 5. Row 2: both seen; 4 again.
    assert accept(chain(4, 5), logits, sampler, [1], 99, frozenset())[0] == [4, 5, 4]
    assert accept(chain(4, 4), logits, sampler, [1], 99, frozenset())[0] == [4, 5]


def test_the_penalty_window_slides_along_the_path() -> None:
    sampler = Sampler(SamplingParams(repetition_penalty=2.0, penalty_window=1))
    logits = np.zeros((4, V), np.float32)
    logits[:, 4], logits[:, 5] = 2.0, 1.5
    assert accept(chain(4, 5, 4), logits, sampler, [1, 4, 9], 99, frozenset())[0] == [4, 5, 4, 5]


def test_one_uniform_number_is_used_per_committed_token() -> None:
    logits = np.zeros((1, V), np.float32)
    plain = Sampler(SamplingParams(1.0, seed=5))
    tokens = [plain.draw(logits[0], []) for _ in range(9)]
    drafting = Sampler(SamplingParams(1.0, seed=5))
    committed: list[int] = []
    while len(committed) < 9:
        proposal = chain(*tokens[len(committed) : len(committed) + 2], 0, 0)
        committed += accept(proposal, np.zeros((5, V), np.float32), drafting, committed, 9, frozenset())[0]
    assert committed[:9] == tokens


def test_prefixes_of_a_draft_are_drafts() -> None:
    part = TREE.first(3)
    assert (list(part.tokens), list(part.parents), len(part)) == ([4, 5, 6], [-1, -1, 0], 3)
    assert [list(chain(4, 5, 6).first(n).parents) for n in range(4)] == [[], [-1], [-1, 0], [-1, 0, 1]]
    assert not NOTHING
    assert MAX_NODES >= 64


def test_children_are_found_below_their_parent_only() -> None:
    assert TREE.child(-1, 5) == 1
    assert TREE.child(0, 6) == 2
    assert TREE.child(1, 6) == 3
    assert TREE.child(-1, 6) is None
    assert TREE.child(4, 4) is None
