"""Rollback of recurrent layers: after any history the continuation is that of a fresh sequence."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import llama_cpp.llama_cpp as api
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.llamacpp.decode_flags import NOT_REPACKED, DecodeMode
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.base.errors import ModelError
from localdflash.engine.checkpoints import SPACING_TOKENS as APART
from localdflash.engine.draft import EMPTY_DRAFT, Draft
from tests.support.converted_models import ids_of
from tests.support.target_models import RECURRENT, case_of

WAY = DecodeMode(NOT_REPACKED, (2, 3, 4, 6, 8))  # some rows get fillers, which must be taken back, too
CONTEXT = 2 * APART
MOVES = ("verify", "verify", "extend", "crop", "end", "save", "load")


@pytest.fixture(scope="module", params=RECURRENT)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = case_of(request.param, "Q8_0")
    case.numbers["context_length"] = CONTEXT
    return case.write(tmp_path_factory.mktemp("states") / "model.gguf", "Q8_0")


@pytest.fixture(scope="module")
def anew(path: Path) -> Iterator[LlamaCppTarget]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as target:
        yield target


@pytest.fixture(scope="module")
def target(path: Path) -> Iterator[LlamaCppTarget]:
    with closing(LlamaCppTarget(path, CONTEXT, 1, (0,), WAY)) as target:
        yield target


def fill(target: LlamaCppTarget, ids: list[int]) -> None:
    target.crop(0)
    for start in range(0, len(ids), target.max_width):
        target.extend(ids[start : start + target.max_width])


def after(target: LlamaCppTarget) -> np.ndarray:
    """Logits and taps of one row more, which is kept."""
    seen = target.verify(3, EMPTY_DRAFT)
    assert seen.features is not None
    found = np.concatenate([seen.logits[0], seen.features[0]])
    target.keep(1)
    return found


def check(target: LlamaCppTarget, anew: LlamaCppTarget, ids: list[int]) -> None:
    """The target holds these ids and nothing else."""
    assert target.length == len(ids)
    fill(anew, ids)
    assert np.array_equal(after(target), after(anew))
    ids.append(3)


@settings(max_examples=12)
@given(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 2**16)), min_size=1, max_size=14))
def test_any_moves_leave_the_states_of_what_is_held(
    moves: list[tuple[str, int]], target: LlamaCppTarget, anew: LlamaCppTarget
) -> None:
    target.crop(0)
    ids: list[int] = []
    saved = target.save(), list(ids)
    for move, number in moves:
        fresh = ids_of(1 + number % 8, seed=number)
        match move:
            case "verify":
                target.verify(fresh[0], Draft("test", fresh[1:], [1.0] * (len(fresh) - 1)))
                target.keep(kept := 1 + number // 8 % len(fresh))
                ids += fresh[:kept]
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


def test_further_back_it_goes_to_where_a_state_is_kept(target: LlamaCppTarget, anew: LlamaCppTarget) -> None:
    """Where the prompt ended, else a number of tokens ago, else to the beginning."""
    ids = ids_of(APART + 40)
    fill(target, ids)
    target.end_prompt()
    for token in ids[:10]:
        target.verify(token, EMPTY_DRAFT)
        target.keep(1)
    for asked, kept in ((len(ids) + 3, len(ids)), (len(ids) - 1, APART), (APART - 1, 0)):
        target.crop(asked)
        check(target, anew, ids[:kept])


def test_a_draft_of_which_nothing_is_kept_is_dropped_to_a_checkpoint(
    target: LlamaCppTarget, anew: LlamaCppTarget
) -> None:
    ids = ids_of(30)
    fill(target, ids)
    target.end_prompt()
    target.verify(5, Draft("test", [6, 7, 8], [1.0] * 3))
    target.keep(0)
    check(target, anew, ids)


def test_a_cache_that_does_not_go_back_is_an_error_and_no_wrong_text(
    target: LlamaCppTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(target, [1, 2, 3])
    target.verify(4, Draft("test", [5, 6], [1.0] * 2))
    with monkeypatch.context() as patch:
        patch.setattr(api, "llama_memory_seq_rm", lambda *_: False)
        with pytest.raises(ModelError, match="from 6 to 4 tokens"):
            target.keep(1)
    target.crop(0)
