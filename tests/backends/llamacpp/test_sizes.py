"""llama.cpp's simulated allocation against shapes, and against stand-ins that hold no weights."""

from contextlib import closing
from pathlib import Path

import pytest

from localdflash.backends.llamacpp import certified
from localdflash.backends.llamacpp.certified import FileMeasurement, MeasuredMode
from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH_WITH_STATES, NOT_REPACKED, DecodeMode
from localdflash.backends.llamacpp.llama_sizes import LlamaCppSizes, ReportedSizes, parse_size_lines
from localdflash.backends.llamacpp.load_llamacpp import load
from localdflash.base.errors import ModelError
from localdflash.engine.checkpoints import MAX_CHECKPOINTS as CHECKPOINTS
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import AS_IT_IS, NO_DRAFTER
from localdflash.models.memory.parts import DRAFTER, DRAFTER_KV, SCRATCH, TARGET, TARGET_KV
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.weights.gguf import read_header
from tests.support.converted_models import ids_of
from tests.support.costs import drafting_pays
from tests.support.random_models import Shape, write
from tests.support.target_models import case_of

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


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_a_drafter_adds_weights_cache_and_scratch(tiny_pair: Path, form: str) -> None:
    path = tiny_pair / f"drafter.{form}"
    with LlamaCppSizes(tiny_pair / "target.gguf", path) as sizes:
        assert sizes.drafters == (AS_IT_IS, NO_DRAFTER)
        drafted, plain = (sizes.parts(sizes.trained, drafter) for drafter in sizes.drafters)
    assert drafted.keys() == plain.keys() | {DRAFTER, DRAFTER_KV}
    assert (drafted[TARGET], drafted[TARGET_KV]) == (plain[TARGET], plain[TARGET_KV])
    assert drafted[SCRATCH] > plain[SCRATCH]
    if form == "gguf":
        assert drafted[DRAFTER] == sum(info.nbytes for info in read_header(path).tensors.values())
    else:
        from localdflash.backends.reference.dflash_files import load

        weights = sum(parameter.numel() for parameter in load(path).parameters())
        table = read_header(tiny_pair / "target.gguf").tensors["token_embd.weight"].shape
        assert drafted[DRAFTER] == pytest.approx((weights + table[0] * table[1]) * 4, rel=0.02)  # but for the norms


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


def test_states_of_recurrent_layers_are_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    way = DecodeMode(NOT_REPACKED, tuple(range(2, MAX_WIDTH_WITH_STATES + 1)), borders=True)
    monkeypatch.setattr(
        certified, "measure", lambda *_: FileMeasurement(1.0, (MeasuredMode(way, {2: 1.0}),), MAX_WIDTH_WITH_STATES)
    )
    path = case_of("qwen35", "Q8_0").write(tmp_path / "model.gguf", "Q8_0")
    options = Options(threads=1, context=256, rows="exact", device="cpu", costs=drafting_pays)
    with closing(load(LocalPair("tiny", path, None, None, None, None), options)) as running:
        running.pair.prefill(ids_of(100))
        planned, held = running.predicted[TARGET_KV], running.measured()[TARGET_KV]
        copied = running.host.target.checkpoint_bytes  # type: ignore[union-attr]
        assert copied > 0
        assert planned == pytest.approx(held + (CHECKPOINTS - 1) * copied, rel=0.02)
