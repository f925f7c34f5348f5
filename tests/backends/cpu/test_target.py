"""The CPU target: what it computes, and that a row is the same to the bit whatever stands beside it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, load
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import LocaldflashError, ModelError, NoDevice, UsageError
from localdflash.engine.draft import Draft
from tests.backends.cpu.conftest import SHAPES, needs_library
from tests.backends.cpu.rounded import logits_of, relative, round_inputs
from tests.backends.cpu.verifying import ids_of, one_by_one, same, verify

pytestmark = needs_library
TAPS = (0, 1)
WIDTHS = (*range(1, 34), MAX_ROWS)

NewTeam = Callable[..., ThreadPool]
Files = Callable[[str], Path]


@pytest.fixture(params=SHAPES)
def path(request: pytest.FixtureRequest, target_file: Files) -> Path:
    return target_file(request.param)


@pytest.fixture
def target(path: Path, new_team: NewTeam) -> CpuTarget:
    return CpuTarget(open_target(path), new_team(), taps=TAPS)


def test_computes_what_the_reference_with_rounded_activations_does(target: CpuTarget, path: Path) -> None:
    """To the last bits until one of these tips a rounding over, and near it from then on."""
    model, ids = load_decoder(path), ids_of(130)
    round_inputs(model)
    logits, taps = logits_of(model, ids, TAPS)
    found = []
    for start in range(0, len(ids), 26):
        found += verify(target, ids[start : start + 26])
        target.keep(26)
    found_logits, found_taps = (torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True))
    first = model.config.hidden_size
    assert relative(found_logits[:4], logits[:4]) < 1e-4
    assert relative(found_taps[:4], taps[:4]) < 1e-4
    assert relative(found_taps[:, :first], taps[:, :first]) < 0.006
    assert relative(found_logits, logits) < 0.03


def test_rounded_activations_are_near_float32(target: CpuTarget, path: Path) -> None:
    ids = ids_of(60)
    logits, _ = logits_of(load_decoder(path), ids)
    found = torch.from_numpy(np.stack([row[0] for row in verify(target, ids)]))
    assert relative(found, logits) < 0.12  # random weights: a mixture goes to other experts now and then


def test_a_row_is_the_same_in_every_width(target: CpuTarget) -> None:
    ids = ids_of(37 + MAX_ROWS)
    target.extend(ids[:37])
    alone = one_by_one(target, ids[37:])
    for width in WIDTHS:
        target.crop(37)
        assert same(verify(target, ids[37 : 37 + width]), alone[:width])


def test_rejected_rows_leave_nothing_behind(target: CpuTarget) -> None:
    ids, wrong = ids_of(60), [int(i) for i in ids_of(90)[60:]]
    target.extend(ids[:40])
    clean = one_by_one(target, ids[40:])
    target.crop(40)
    for i, token in enumerate(ids[40:]):
        assert same(verify(target, [token, *wrong])[:1], clean[i : i + 1])
        target.keep(1)


def test_an_assumed_length_leaves_nothing_behind(target: CpuTarget) -> None:
    ids = [3, 1, 4, 1, 5]
    target.extend(ids)
    wanted = target.verify(9, Draft("x", [2, 6], [1.0, 1.0])).logits.copy()
    target.crop(0)
    assert target.assume(target.context // 2)
    target.verify(9, Draft("x", [2, 6], [1.0, 1.0]))
    target.keep(0)
    assert target.length == target.context // 2
    target.crop(0)
    target.extend(ids)
    assert (target.verify(9, Draft("x", [2, 6], [1.0, 1.0])).logits == wanted).all()


def test_chunks_of_a_prompt_do_not_matter(target: CpuTarget) -> None:
    ids = ids_of(130)
    results = []
    for chunk in (1, 7, 33, MAX_ROWS):
        target.crop(0)
        taps = []
        for start in range(0, 120, chunk):
            fed = target.extend(ids[start : min(start + chunk, 120)])
            assert fed is not None
            taps.append(fed)
        results.append((np.concatenate(taps), verify(target, ids[120:])))
    for tapped, rows in results[1:]:
        assert np.array_equal(tapped, results[0][0])
        assert same(rows, results[0][1])


def test_threads_do_not_matter(path: Path, new_team: NewTeam) -> None:
    ids = ids_of(60)
    results = [verify(CpuTarget(open_target(path), new_team(n), taps=TAPS), ids) for n in (1, 2, 3, 5, 8)]
    assert all(same(rows, results[0]) for rows in results[1:])


def test_instruction_sets_do_not_matter(path: Path, new_team: NewTeam) -> None:
    ids = ids_of(20)
    teams = [new_team(2, name) for name in load().instruction_sets]
    assert [team.instruction_set for team in teams] == load().instruction_sets
    results = [verify(CpuTarget(open_target(path), team, taps=TAPS), ids) for team in teams]
    assert all(same(rows, results[0]) for rows in results[1:])


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 50])
def test_saved_sequences_go_on_the_same(target: CpuTarget, length: int) -> None:
    ids = ids_of(70)
    if length:
        target.extend(ids[:length])
    wanted = verify(target, ids[length : length + 20])
    state = target.save()
    target.crop(0)
    target.extend(ids_of(60)[::-1])
    target.load(state, length)
    assert target.length == length
    assert same(verify(target, ids[length : length + 20]), wanted)


def test_without_taps_none_are_kept(path: Path, new_team: NewTeam) -> None:
    target = CpuTarget(open_target(path), new_team())
    assert target.extend([1, 2, 3]) is None
    assert target.verify(4).taps is None


def test_context_is_what_was_asked_for(path: Path, new_team: NewTeam) -> None:
    packed = open_target(path)
    assert CpuTarget(packed, new_team()).context == packed.config.context_length
    target = CpuTarget(packed, new_team(), 100)
    target.extend(ids_of(64))
    target.extend(ids_of(36))
    with pytest.raises(LocaldflashError, match="after 100 tokens"):
        target.extend(ids_of(13))
    for context in (7, packed.config.context_length + 1):
        with pytest.raises(UsageError, match=f"context of {context} tokens"):
            CpuTarget(packed, new_team(), context)


def test_what_makes_no_sense_is_refused(target: CpuTarget, path: Path, new_team: NewTeam) -> None:
    with pytest.raises(UsageError, match="token"):
        target.verify(-1)
    for token in (target.vocab_size, 2**31, 2**64):
        with pytest.raises(UsageError, match="token"):
            target.verify(token)
    with pytest.raises(LocaldflashError, match="rows"):
        target.extend([1] * (MAX_ROWS + 1))
    with pytest.raises(ModelError, match="tap 2"):
        CpuTarget(open_target(path), new_team(), taps=(2,))
    with pytest.raises(NoDevice, match="cannot run avx1024"):
        new_team(1, "avx1024")


def test_a_closed_target_is_refused(path: Path, new_team: NewTeam) -> None:
    target = CpuTarget(open_target(path), new_team())
    target.close()
    target.close()
    with pytest.raises(LocaldflashError, match="closed"):
        target.verify(1)


def test_a_router_that_overflows_shows(target_file: Files, new_team: NewTeam) -> None:
    """Its expert cannot be compared with the others, whether it would be chosen or not."""
    packed = open_target(target_file("mixture"))
    first = packed.layers[0]
    assert first.router is not None
    router = first.router.copy()
    router[3] = np.where(np.arange(router.shape[1]) % 2, 3e38, -3e38)
    damaged = replace(packed, layers=(replace(first, router=router), *packed.layers[1:]))
    assert np.isnan(CpuTarget(damaged, new_team()).verify(1).logits).all()
