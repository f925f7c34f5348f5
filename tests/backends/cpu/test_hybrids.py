"""Targets of other kinds than plain decoders: a row is the same to the bit whatever stands beside it or came before."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, load
from localdflash.backends.cpu.cpu_target import CpuTarget
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.verifying import ids_of, one_by_one, same, verify
from tests.support import gpt_oss_models, qwen35_models

pytestmark = needs_library
TAPS = (0, 1)
VOCABULARY = 97
WRITERS: dict[str, Callable[[Path], Path]] = {
    "gpt-oss": lambda path: gpt_oss_models.case_of("Q8_0", "MXFP4").write(path, "Q8_0", "MXFP4"),
    "qwen35": lambda path: qwen35_models.case_of("qwen35", "Q8_0").write(path, "Q8_0"),
    "qwen35 ending in a delta net": lambda path: qwen35_models.case_of("qwen35", "Q8_0", (1,)).write(path, "Q8_0"),
    "qwen35moe": lambda path: qwen35_models.case_of("qwen35moe", "Q8_0").write(path, "Q8_0"),
}

NewTeam = Callable[..., ThreadPool]


@pytest.fixture(scope="module", params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("hybrids") / f"{request.param}.gguf")


@pytest.fixture
def target(path: Path, new_team: NewTeam) -> CpuTarget:
    return CpuTarget(open_target(path), new_team(), taps=TAPS)


def test_a_row_is_the_same_in_every_width(target: CpuTarget) -> None:
    ids = ids_of(37 + MAX_ROWS, VOCABULARY)
    target.extend(ids[:37])
    alone = one_by_one(target, ids[37:])
    for width in (*range(1, 34), MAX_ROWS):
        target.crop(0)
        target.extend(ids[:37])
        assert same(verify(target, ids[37 : 37 + width]), alone[:width])


def test_any_prefix_of_a_verify_can_be_kept(target: CpuTarget) -> None:
    """With what follows it, another draft or a prompt's next chunk."""
    ids, wrong = ids_of(40 + 90, VOCABULARY), ids_of(200, VOCABULARY)[150:]
    target.extend(ids[:40])
    clean = one_by_one(target, ids[40:])
    target.crop(0)
    target.extend(ids[:40])
    done = 40
    for kept in (1, 2, 5, 1, 8, 13, 16, 1, 31, 3):
        draft = [*ids[done : done + kept], *wrong[: 32 - kept]]
        assert same(verify(target, draft)[:kept], clean[done - 40 : done - 40 + kept])
        target.keep(kept)
        done += kept
    fed = target.extend(ids[done : done + 5])
    assert fed is not None
    assert np.array_equal(fed, np.stack([row[1] for row in clean[done - 40 : done - 35]]))


def test_chunks_of_a_prompt_do_not_matter(target: CpuTarget) -> None:
    ids = ids_of(130, VOCABULARY)
    results = []
    for chunk in (1, 7, 33, MAX_ROWS):
        target.crop(0)
        for start in range(0, 120, chunk):
            target.extend(ids[start : min(start + chunk, 120)])
        results.append(verify(target, ids[120:]))
    assert all(same(rows, results[0]) for rows in results[1:])


def test_threads_do_not_matter(path: Path, new_team: NewTeam) -> None:
    ids = ids_of(60, VOCABULARY)
    results = [verify(CpuTarget(open_target(path), new_team(n), taps=TAPS), ids) for n in (1, 2, 3, 5, 8)]
    assert all(same(rows, results[0]) for rows in results[1:])


def test_instruction_sets_do_not_matter(path: Path, new_team: NewTeam) -> None:
    ids, results = ids_of(60, VOCABULARY), []
    for name in load().instruction_sets:
        target = CpuTarget(open_target(path), new_team(2, name), taps=TAPS)
        target.extend(ids[:40])
        results.append(verify(target, ids[40:]))
    assert all(same(rows, results[0]) for rows in results[1:])


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 50])
def test_saved_sequences_go_on_the_same(target: CpuTarget, length: int) -> None:
    ids = ids_of(70, VOCABULARY)
    if length:
        target.extend(ids[:length])
    state = target.save()
    wanted = verify(target, ids[length : length + 20])
    target.crop(0)
    target.extend(ids_of(60, VOCABULARY)[::-1])
    target.load(state, length)
    assert target.length == length
    assert same(verify(target, ids[length : length + 20]), wanted)
