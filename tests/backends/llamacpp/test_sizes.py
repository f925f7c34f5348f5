"""llama.cpp's simulated allocation against shapes, and against stand-ins that hold no weights."""

from pathlib import Path

import pytest

from localdflash.backends.llamacpp.llama_sizes import LlamaCppSizes, ReportedSizes, parse_size_lines
from localdflash.base.errors import ModelError
from localdflash.models.memory.fit import NO_DRAFTER
from localdflash.models.memory.parts import SCRATCH, TARGET, TARGET_KV
from localdflash.models.weights.gguf import read_header
from tests.support.random_models import Shape, write

SHAPE = Shape("Q8_0", 256, 3, 4, 2, 512, 65536)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model") / "model.gguf", SHAPE)


def cache(tokens: int) -> int:
    cells = -(-(tokens + 1) // 256) * 256
    return cells * SHAPE.layers * 2 * SHAPE.kv_heads * SHAPE.head_dim * 2


def test_weights_cache_and_scratch_by_the_header_alone(model: Path, tmp_path: Path) -> None:
    hollow = tmp_path / "hollow.gguf"
    with model.open("rb") as stream, hollow.open("wb") as copy:
        copy.write(stream.read(read_header(model).data_offset))
        copy.truncate(model.stat().st_size)
    scratch = []
    for context in (512, 4096, 65536):
        with LlamaCppSizes(model, None) as sizes, LlamaCppSizes(hollow, None) as planned:
            parts = sizes.parts(context, NO_DRAFTER)
            assert parts == planned.parts(context, NO_DRAFTER)
            assert (sizes.trained, sizes.drafters) == (65536, (NO_DRAFTER,))
        assert parts[TARGET] == sum(info.nbytes for info in read_header(model).tensors.values())
        assert parts[TARGET_KV] == pytest.approx(cache(context), abs=1e4)
        assert parts.keys() == {TARGET, TARGET_KV, SCRATCH}
        scratch.append(parts[SCRATCH])
    mask = 32 * (65536 - 4096) * 2
    assert mask * 0.8 < scratch[2] - scratch[1] < mask * SHAPE.heads / 2  # it grows with the mask, not with the scores


def test_two_caches_are_added_and_a_buffer_that_is_planned_again_counts_once() -> None:
    lines = [
        "llama_context:        CPU  output buffer size =     1.00 MiB",
        "llama_kv_cache: size =    4.50 MiB (   768 cells,   6 layers,  1/1 seqs), K (f32):    2.25 MiB",
        "llama_kv_cache: size =    1.50 MiB (   768 cells,   2 layers,  1/1 seqs), K (f32):    0.75 MiB",
        "sched_reserve:        CPU compute buffer size =     9.00 MiB",
        "sched_reserve:        CPU compute buffer size =     2.00 MiB",
        "sched_reserve:      BLAS compute buffer size =     0.50 MiB",
    ]
    assert parse_size_lines(lines) == ReportedSizes(6 << 20, 7 << 19)
    with pytest.raises(ModelError, match="size of its cache"):
        parse_size_lines(lines[:1])
