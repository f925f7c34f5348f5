"""The CPU engine's KV cache in 8 bits: near float16, half its size, and never mixed with states of the other format."""

from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_kv_cache import KV_FORMATS, KVCache
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_sizes import CpuSizes
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.engine.generate import Request, generate
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import AS_IT_IS
from localdflash.models.memory.parts import DRAFTER_KV, TARGET_KV
from tests.backends.cpu.conftest import SHAPES, needs_library
from tests.support import gpt_oss_models, qwen35_models
from tests.support.converted_models import ids_of
from tests.support.costs import drafting_pays
from tests.support.lossless import verify
from tests.support.tiny_models import write_target

pytestmark = needs_library
WRITERS: dict[str, Callable[[Path], Path]] = {
    "dense": lambda path: write_target(path, *SHAPES["Q8_0"]),
    "gpt-oss": lambda path: gpt_oss_models.case_of("Q8_0", "MXFP4").write(path, "Q8_0", "MXFP4"),
    "qwen35": lambda path: qwen35_models.case_of("qwen35", "Q8_0").write(path, "Q8_0"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_rows_are_near_those_of_float16(kind: str, tmp_path: Path, new_team: Callable[..., ThreadPool]) -> None:
    packed, ids, rows = open_target(WRITERS[kind](tmp_path / "model.gguf")), ids_of(120), []
    for kv in KV_FORMATS:
        target = CpuTarget(packed, new_team(), kv=kv)
        target.extend(ids[:50])
        target.extend(ids[50:100])
        rows.append(np.stack([row[0] for row in verify(target, ids[100:])]))
    wanted, found = rows
    assert (found != wanted).any()
    assert np.linalg.norm(found - wanted) < 0.12 * np.linalg.norm(wanted)  # a mixture goes to other experts at times


@pytest.mark.parametrize("kv", KV_FORMATS)
def test_only_the_named_positions_are_cleared_and_states_of_another_size_refused(kv: str) -> None:
    config = SHAPES["Q8_0"][0]
    cache = KVCache(2, config, 60, kv)
    assert cache.capacity == 64
    cache.load(np.ones(len(cache.save(64)), np.uint8).tobytes(), 64)
    cache.clear(5, 38)
    assert (np.frombuffer(cache.save(64), np.uint8) == 0).mean() == 33 / 64
    by_position = cache.arrays[-1].reshape(2, config.num_key_value_heads, 64, -1)
    assert (by_position[:, :, 5:38] == 0).all()
    assert (by_position[:, :, [*range(5), *range(38, 64)]] != 0).all()
    for wrong in (cache.save(33)[:-4], cache.save(33) + b"\0\0\0\0", b""):
        with pytest.raises(ValueError, match=r"buffer|bytes"):
            cache.load(wrong, 33)


def test_a_pair_in_8_bits(tiny_pair: Path) -> None:
    files = tiny_pair / "target.gguf", tiny_pair / "drafter.gguf"
    with ExitStack() as stack:

        def load(kv: str, draft: bool) -> LoadedPair:
            options = Options(str(files[0]), "cpu", threads=2, context=256, kv=kv, draft=draft, costs=drafting_pays)
            return stack.enter_context(LoadedPair(options))

        loaded, plain, halves = load("int8", True), load("int8", False), load("f16", True)
        for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=3)):
            drafted, wanted = (
                [step.tokens for step in generate(one.pair, Request(ids_of(20), 60, params))] for one in (loaded, plain)
            )
            assert [*chain(*drafted)] == [*chain(*wanted)]
            assert params.temperature or len(drafted) < len(wanted) == 60
        for part in (TARGET_KV, DRAFTER_KV):
            assert loaded.predicted[part] == loaded.memory()[part]
        assert loaded.identity() != halves.identity()
    sizes = [CpuSizes(*files, kv=kv).parts(256, AS_IT_IS) for kv in KV_FORMATS]
    assert sizes[0][DRAFTER_KV] == sizes[1][DRAFTER_KV]
    assert 0.5 < sizes[1][TARGET_KV] / sizes[0][TARGET_KV] < 0.6
