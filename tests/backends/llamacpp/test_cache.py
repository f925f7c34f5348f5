"""Rollback of recurrent layers: after any history the continuation is that of a fresh sequence."""

from collections.abc import Iterator
from contextlib import closing

import llama_cpp.llama_cpp as api
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.base.errors import ModelError
from localdflash.engine.checkpoints import SPACING_TOKENS as APART
from tests.support.converted_models import ids_of
from tests.support.lossless import fill, one_by_one, same, verify
from tests.support.target_models import RECURRENT, case_of

WAY = DecodeMode(NOT_REPACKED, (2, 3, 4, 6, 8))  # some rows get fillers, which must be taken back, too
CONTEXT = 2 * APART
MOVES = ("verify", "verify", "extend", "crop", "end", "save", "load")


@pytest.fixture(scope="module", params=RECURRENT)
def targets(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaCppTarget, LlamaCppTarget]]:
    """Open a model twice: to have a history, and to read each sequence anew."""
    case = case_of(request.param, "Q8_0")
    case.numbers["context_length"] = CONTEXT
    path = case.write(tmp_path_factory.mktemp("states") / "model.gguf", "Q8_0")
    with (
        closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as target,
        closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as anew,
    ):
        yield target, anew


def check(target: LlamaCppTarget, anew: LlamaCppTarget, ids: list[int]) -> None:
    """Assert that the target holds these ids and nothing else."""
    assert target.length == len(ids)
    fill(anew, ids, anew.max_width)
    assert same(one_by_one(target, [3]), one_by_one(anew, [3]))
    ids.append(3)


@settings(max_examples=12)
@given(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 2**16)), min_size=1, max_size=14))
def test_any_moves_leave_the_states_of_what_is_held(
    moves: list[tuple[str, int]], targets: tuple[LlamaCppTarget, LlamaCppTarget]
) -> None:
    target, anew = targets
    target.crop(0)
    ids: list[int] = []
    saved = target.save(), list(ids)
    for move, number in moves:
        fresh = ids_of(1 + number % 8, seed=number)
        match move:
            case "verify":
                verify(target, fresh)
                target.keep(kept := number // 8 % (len(fresh) + 1))
                ids += fresh[:kept]
                del ids[target.length :]  # if nothing is kept it goes back to a checkpoint
            case "extend":
                target.extend(fresh)
                ids += fresh
            case "crop":
                asked = number % (len(ids) + 1)
                target.crop(asked)
                assert target.length <= asked
                del ids[target.length :]
            case "end":
                target.end_prompt()
            case "save":
                saved = target.save(), list(ids)
            case "load":
                target.load(saved[0], len(saved[1]))
                ids = list(saved[1])
    check(target, anew, ids)


def test_further_back_it_goes_to_where_a_state_is_kept(targets: tuple[LlamaCppTarget, LlamaCppTarget]) -> None:
    """Where the prompt ended, else a number of tokens ago, else to the beginning."""
    (target, anew), ids = targets, ids_of(APART + 40)
    fill(target, ids, target.max_width)
    target.end_prompt()
    one_by_one(target, ids[:10])
    for asked, kept in ((len(ids) + 3, len(ids)), (len(ids) - 1, APART), (APART - 1, 0)):
        target.crop(asked)
        check(target, anew, ids[:kept])


def test_a_cache_that_does_not_go_back_is_an_error_and_no_wrong_text(
    targets: tuple[LlamaCppTarget, LlamaCppTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = targets
    fill(target, [1, 2, 3], 3)
    verify(target, [4, 5, 6])
    with monkeypatch.context() as patch:
        patch.setattr(api, "llama_memory_seq_rm", lambda *_: False)
        with pytest.raises(ModelError, match="from 6 to 4 tokens"):
            target.keep(1)
    target.crop(0)
