"""Any shape that is let in: rows that do not depend on their neighbours, threads or instruction set, and are right."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from localdflash.backends.cpu import cpu_library
from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import Draft
from localdflash.models.shapes.decoder_config import DecoderConfig
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.rounded import logits_of, relative, round_inputs
from tests.support.tiny_models import write_target

pytestmark = needs_library
LENGTH = 80  # more than a block of keys


@st.composite
def shapes(draw: st.DrawFn) -> DecoderConfig:
    """Few heads to a group or many, sizes that end within a panel, a super-block or a chunk; every fourth a mixture."""
    kv_heads = draw(st.integers(1, 3))
    experts = draw(st.sampled_from([0, 0, 0, 17]))
    return DecoderConfig(
        vocab_size=draw(st.integers(8, 600)),
        hidden_size=32 * draw(st.integers(1, 16)),
        num_hidden_layers=draw(st.integers(1, 3)),
        num_attention_heads=kv_heads * draw(st.integers(1, 5)),
        num_key_value_heads=kv_heads,
        head_dim=draw(st.sampled_from([32, 64, 96, 128])),
        intermediate_size=32 * draw(st.integers(1, 12)),
        context_length=LENGTH,
        tie_word_embeddings=draw(st.booleans()),
        num_experts=experts,
        num_experts_per_tok=experts and draw(st.integers(2, 8)),
        moe_intermediate_size=experts and 32 * draw(st.integers(1, 4)),
        norm_topk_prob=experts > 0,
    )


def logits(target: CpuTarget, ids: list[int], width: int) -> torch.Tensor:
    """Of all ids, so many at a time."""
    target.crop(0)
    rows = []
    for start in range(0, len(ids), width):
        first, *more = ids[start : start + width]
        rows.append(target.verify(first, Draft("test", more, [1.0] * len(more))).logits.copy())
        target.keep(1 + len(more))
    return torch.from_numpy(np.concatenate(rows))


@pytest.mark.nightly
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    shape=shapes(),
    kind=st.sampled_from(["Q8_0", "Q4_0", "Q5_1", "MXFP4"]),
    width=st.integers(2, MAX_ROWS),
    threads=st.integers(2, 6),
    instruction_set=st.sampled_from([] if cpu_library.available() else cpu_library.load().instruction_sets),
)
def test_rows_of_any_shape(shape: DecoderConfig, kind: str, width: int, threads: int, instruction_set: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_target(Path(folder) / "target.gguf", shape, kind)
        packed, model = open_target(path), load_decoder(path)
    ids = [int(i) for i in np.random.default_rng(width).integers(0, shape.vocab_size, LENGTH)]
    teams = ThreadPool(1), ThreadPool(threads, (), instruction_set)
    try:
        alone, together = (logits(CpuTarget(packed, t), ids, w) for t, w in zip(teams, (1, width), strict=True))
    finally:
        for team in teams:
            team.close()
    assert torch.equal(alone, together)
    round_inputs(model)
    wanted, _ = logits_of(model, ids)
    assert relative(alone[:2], wanted[:2]) < 0.05  # a rounding may tip over; what is wrong is apart by its own size
    assert relative(alone, wanted) < 0.1
