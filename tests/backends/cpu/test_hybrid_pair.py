"""A pair with recurrent layers: drafts change no token, and a prefix is reused only from a kept state."""

from collections.abc import Callable
from pathlib import Path

import pytest

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.checkpoints import SPACING_TOKENS as APART
from localdflash.engine.controller import Controller
from localdflash.engine.host_pair import HostPair
from localdflash.engine.lookup import LookupDrafter
from tests.backends.cpu.conftest import needs_library
from tests.support import qwen35_models
from tests.support.converted_models import ids_of
from tests.support.lossless import same, verify
from tests.support.requests import run

pytestmark = needs_library
NewTeam = Callable[..., ThreadPool]
CONTEXT, BIG = 6 * APART, 1 << 30
VERIFY_MS = {1: 1.0, 4: 1.01, 32: 1.1}  # so cheap that whatever is drafted is verified


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    case = qwen35_models.case_of("qwen35", "Q8_0")
    case.numbers["context_length"] = CONTEXT
    return case.write(tmp_path_factory.mktemp("hybrid") / "model.gguf", "Q8_0")


@pytest.fixture
def target(path: Path, new_team: NewTeam) -> CpuTarget:
    return CpuTarget(open_target(path), new_team(), taps=(0,))


@pytest.fixture
def pair(target: CpuTarget) -> HostPair:
    return HostPair(target, [LookupDrafter()], Controller(VERIFY_MS, {}))


def test_drafts_change_no_token(pair: HostPair) -> None:
    ids = ids_of(50)
    plain, _ = run(pair, ids, 60, draft=False)
    pair.forget()
    document = [*ids, *(3 if i % 11 == 10 else token for i, token in enumerate(plain))]  # nearly this text
    drafted, request = run(pair, ids, 60, documents=[document])
    assert drafted == plain
    assert request.stats.accepted > 20
    assert request.stats.drafted > request.stats.accepted


def test_going_back_computes_again_what_no_state_is_kept_of(pair: HostPair) -> None:
    ids = ids_of(100)
    text, first = run(pair, ids, 60)
    assert first.computed_tokens == 99
    pair.rollback(120)
    assert len(pair.cached) == 119
    after, _ = run(pair, [*ids, *text[:20]], 60)
    assert after[:40] == text[20:]
    _, longer = run(pair, [*ids, 5, 6, 7], 60)
    assert longer.computed_tokens == 3  # after the prompt's state
    shorter, request = run(pair, ids[:50], 60)
    assert request.computed_tokens == 49
    pair.forget()
    assert run(pair, ids[:50], 60)[0] == shorter


def test_a_long_prompt_leaves_states_on_the_way(target: CpuTarget) -> None:
    ids = ids_of(5 * APART + 30)
    pair = HostPair(target)
    pair.prefill(ids)
    for length, kept in ((5 * APART + 10, 5 * APART), (4 * APART, 4 * APART), (3 * APART + 5, 3 * APART)):
        target.crop(length)
        assert target.length == kept
    wanted = verify(target, ids[kept : kept + 9])
    target.crop(3 * APART - 1)
    assert target.length == 0
    for start in range(0, kept, 64):
        target.extend(ids[start : start + 64])
    assert same(verify(target, ids[kept : kept + 9]), wanted)
