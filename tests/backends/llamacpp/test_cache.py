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

WAY = DecodeMode(NOT_REPACKED, (2, 3, 4, 6, 8))  # some batches get filler rows, which must be rolled back too
CONTEXT = 2 * APART
MOVES = ("verify", "verify", "extend", "crop", "end", "save", "load")


@pytest.fixture(scope="module", params=RECURRENT)
def targets(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LlamaCppTarget, LlamaCppTarget]]:
    """Open a model twice: one target has the history, the other reads each sequence from the start."""
    case = case_of(request.param, "Q8_0")
    case.numbers["context_length"] = CONTEXT
    path = case.write(tmp_path_factory.mktemp("states") / "model.gguf", "Q8_0")
    with (
        closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as target,
        closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as fresh_target,
    ):
        yield target, fresh_target


def check(target: LlamaCppTarget, fresh_target: LlamaCppTarget, ids: list[int]) -> None:
    """Assert that the target continues like a fresh target that read these ids."""
    assert target.length == len(ids)
    fill(fresh_target, ids, fresh_target.max_width)
    assert same(one_by_one(target, [3]), one_by_one(fresh_target, [3]))
    ids.append(3)


@settings(max_examples=12)
@given(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 2**16)), min_size=1, max_size=14))
def test_random_moves_keep_states_correct(
    moves: list[tuple[str, int]], targets: tuple[LlamaCppTarget, LlamaCppTarget]
) -> None:
    target, fresh_target = targets
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
                del ids[target.length :]  # if no row is kept it returns to a checkpoint
            case "extend":
                target.extend(fresh)
                ids += fresh
            case "crop":
                length = number % (len(ids) + 1)
                target.crop(length)
                assert target.length <= length
                del ids[target.length :]
            case "end":
                target.end_prompt()
            case "save":
                saved = target.save(), list(ids)
            case "load":
                target.load(saved[0], len(saved[1]))
                ids = list(saved[1])
    check(target, fresh_target, ids)


def test_long_rollback_returns_to_a_checkpoint(targets: tuple[LlamaCppTarget, LlamaCppTarget]) -> None:
    """To the end of the prompt, else to the last checkpoint, else to the beginning."""
    (target, fresh_target), ids = targets, ids_of(APART + 40)
    fill(target, ids, target.max_width)
    target.end_prompt()
    one_by_one(target, ids[:10])
    for length, kept in ((len(ids) + 3, len(ids)), (len(ids) - 1, APART), (APART - 1, 0)):
        target.crop(length)
        check(target, fresh_target, ids[:kept])


def test_failed_rollback_is_an_error(
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
