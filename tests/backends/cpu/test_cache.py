"""Keys and values in 8 bits: rows are near those of float16 and the same to the bit, and drafts change no token."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_kv_cache import KV_FORMATS, KeysAndValues
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, load
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.plan.planner import make_plan
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import AS_IT_IS
from localdflash.models.memory.parts import DRAFTER_KV, TARGET_KV
from tests.backends.cpu.conftest import SHAPES, needs_library
from tests.backends.cpu.verifying import Row, ids_of, one_by_one, same, verify
from tests.support import gpt_oss_models, qwen35_models
from tests.support.costs import drafting_pays
from tests.support.tiny_models import write_target

pytestmark = needs_library
VOCABULARY = 97
WRITERS: dict[str, Callable[[Path], Path]] = {
    "dense": lambda path: write_target(path, *SHAPES["Q8_0"]),
    "gpt-oss": lambda path: gpt_oss_models.case_of("Q8_0", "MXFP4").write(path, "Q8_0", "MXFP4"),
    "qwen35": lambda path: qwen35_models.case_of("qwen35", "Q8_0").write(path, "Q8_0"),
}
NewTeam = Callable[..., ThreadPool]
Open = Callable[..., CpuTarget]


@pytest.fixture(scope="module", params=WRITERS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("cached") / f"{request.param}.gguf")


@pytest.fixture
def opened(path: Path, new_team: NewTeam) -> Open:
    """Opens the target on a team."""

    def make(kv: str = "int8", threads: int = 2, instruction_set: str = "") -> CpuTarget:
        return CpuTarget(open_target(path), new_team(threads, instruction_set), taps=(0, 1), kv=kv)

    return make


def after_prompt(target: CpuTarget, chunk: int = MAX_ROWS) -> list[Row]:
    """Rows of a verify after a prompt read in chunks."""
    ids = ids_of(140, VOCABULARY)
    for start in range(0, 120, chunk):
        target.extend(ids[start : min(start + chunk, 120)])
    return verify(target, ids[120:])


def test_rows_are_near_those_of_float16(opened: Open) -> None:
    found, wanted = (np.stack([row[0] for row in after_prompt(opened(kv))]) for kv in ("int8", "f16"))
    assert (found != wanted).any()
    apart = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert apart < 0.12  # random weights: a mixture goes to other experts now and then


def test_a_row_is_the_same_in_every_width(opened: Open) -> None:
    target, ids = opened(), ids_of(37 + MAX_ROWS, VOCABULARY)
    target.extend(ids[:37])
    alone = one_by_one(target, ids[37:])
    for width in (*range(1, 34), MAX_ROWS):
        target.crop(0)
        target.extend(ids[:37])
        assert same(verify(target, ids[37 : 37 + width]), alone[:width])


def test_chunks_threads_and_instruction_sets_do_not_matter(opened: Open) -> None:
    wanted = after_prompt(opened())
    assert all(same(after_prompt(opened(), chunk), wanted) for chunk in (1, 7, 33))
    assert all(same(after_prompt(opened(threads=threads)), wanted) for threads in (1, 3))
    assert all(same(after_prompt(opened(instruction_set=name)), wanted) for name in load().instruction_sets)


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 50])
def test_saved_sequences_go_on_the_same(opened: Open, length: int) -> None:
    target, ids = opened(), ids_of(70, VOCABULARY)
    if length:
        target.extend(ids[:length])
    state = target.save()
    wanted = verify(target, ids[length : length + 20])
    target.crop(0)
    target.extend(ids_of(60, VOCABULARY)[::-1])
    target.load(state, length)
    assert same(verify(target, ids[length : length + 20]), wanted)


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_positions_are_cleared_and_no_others(kv: str) -> None:
    config = SHAPES["Q8_0"][0]
    cache, zeros = KeysAndValues(2, config, 60, kv), KeysAndValues(2, config, 60, kv)
    assert cache.capacity == 64
    filled = np.ones(len(cache.save(64)), np.uint8).tobytes()
    cache.load(filled, 64)
    cache.clear(5, 38)
    zeros.load(filled, 64)
    zeros.clear(5, 21)
    assert cache.save(64) != zeros.save(64)
    zeros.clear(21, 38)
    assert cache.save(64) == zeros.save(64)
    assert (np.frombuffer(cache.save(64), np.uint8) == 0).mean() == 33 / 64
    by_position = cache.arrays[-1].reshape(2, config.num_key_value_heads, 64, -1)
    assert (by_position[:, :, 5:38] == 0).all()
    assert (by_position[:, :, [*range(5), *range(38, 64)]] != 0).all()


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_what_was_not_saved_by_it_is_refused(kv: str) -> None:
    cache = KeysAndValues(2, SHAPES["Q8_0"][0], 64, kv)
    for wrong in (cache.save(33)[:-4], cache.save(33) + b"\0\0\0\0", b""):
        with pytest.raises(ValueError, match=r"buffer|bytes of keys"):
            cache.load(wrong, 33)


class TestAPair:
    @pytest.fixture
    def loaded(self, tiny_pair: Path) -> Iterator[LoadedPair]:
        options = Options(str(tiny_pair / "target.gguf"), "cpu", threads=2, context=256, kv="int8", costs=drafting_pays)
        with LoadedPair(options) as pair:
            yield pair

    @pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=3)])
    def test_drafts_change_no_token(self, loaded: LoadedPair, tiny_pair: Path, params: SamplingParams) -> None:
        options = Options(str(tiny_pair / "target.gguf"), "cpu", threads=2, context=256, kv="int8", draft=False)
        with LoadedPair(options) as plain:
            for start in (0, 3, 8):
                drafted, wanted = (
                    [step.tokens for step in generate(pair, Request(ids_of(20, 100)[start:], 60, params))]
                    for pair in (loaded.pair, plain.pair)
                )
                assert [*chain(*drafted)] == [*chain(*wanted)]
                assert params.temperature or len(drafted) < len(wanted) == 60

    def test_takes_what_was_planned_and_about_half_of_float16(self, loaded: LoadedPair, tiny_pair: Path) -> None:
        assert loaded.predicted[TARGET_KV] == loaded.memory()[TARGET_KV]
        assert loaded.predicted[DRAFTER_KV] == loaded.memory()[DRAFTER_KV]
        halves, codes = (
            CpuSizes(tiny_pair / "target.gguf", tiny_pair / "drafter.gguf", kv=kv).parts(256, AS_IT_IS)
            for kv in KV_FORMATS
        )
        assert halves[DRAFTER_KV] == codes[DRAFTER_KV] == loaded.predicted[DRAFTER_KV]
        assert 0.5 < codes[TARGET_KV] / halves[TARGET_KV] < 0.6

    def test_its_saved_sequences_are_no_others(self, loaded: LoadedPair, tiny_pair: Path) -> None:
        with LoadedPair(Options(str(tiny_pair / "target.gguf"), "cpu", threads=2, context=256)) as halves:
            assert halves.identity() != loaded.identity()

    def test_is_planned(self, tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("localdflash.backends.cuda.device.driver_present", lambda: False)
        halves, codes = (make_plan(str(tiny_pair / "target.gguf"), 512, "cpu", kv=kv) for kv in KV_FORMATS)
        assert codes.parts[TARGET_KV] < 0.6 * halves.parts[TARGET_KV]
