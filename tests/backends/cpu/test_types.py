"""Whole models of every type of weights, against the torch reference and against llama.cpp on files that it wrote."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import MAX_ROWS, ThreadPool, load
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import Draft
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import read_header
from tests.backends.cpu.conftest import needs_library
from tests.backends.cpu.packed_models import QUANTIZED, VOCABULARY, dequantized, target_tensors, write
from tests.backends.cpu.rounded import logits_of, relative, round_inputs
from tests.support import random_models

pytestmark = needs_library
NewTeam = Callable[..., ThreadPool]
IDS = [int(i) for i in np.random.default_rng(5).integers(0, VOCABULARY, 33)]
EVERY_TYPE = pytest.mark.parametrize("kind", QUANTIZED, ids=[kind.name for kind in QUANTIZED])
# Files as people have them, and the types that are in them beside F32.
MIXES = {
    "Q5_0": {"Q5_0", "Q6_K"},
    "Q5_1": {"Q5_1", "Q6_K"},
    "Q2_K": {"Q2_K", "Q3_K", "Q4_K", "Q6_K"},
    "Q3_K_M": {"Q3_K", "Q4_K", "Q5_K", "Q6_K"},
    "Q5_K_M": {"Q5_K", "Q6_K"},
    "IQ4_NL": {"IQ4_NL", "Q5_K", "Q6_K"},
    "IQ4_XS": {"IQ4_XS", "Q5_K", "Q6_K"},
    "MXFP4_MOE": {"MXFP4", "Q8_0"},
}


def logits(target: CpuTarget | LlamaCppTarget, ids: list[int]) -> torch.Tensor:
    """Of all ids at once, from the start."""
    target.crop(0)
    return torch.from_numpy(target.verify(ids[0], Draft("test", ids[1:], [1.0] * (len(ids) - 1))).logits.copy())


@pytest.mark.parametrize("architecture", ["qwen3", "qwen3moe"])
@EVERY_TYPE
def test_computes_what_the_reference_does(kind: GGMLType, architecture: str, tmp_path: Path, new_team: NewTeam) -> None:
    path = write(tmp_path / "model.gguf", target_tensors(architecture, kind), architecture)
    found = logits(CpuTarget(open_target(path), new_team()), IDS)
    model = load_decoder(path)
    round_inputs(model)
    wanted, _ = logits_of(model, IDS)
    assert relative(found[:2], wanted[:2]) < 0.02  # a rounding may tip over; a wrong weight makes it more
    assert relative(found, wanted) < 0.05


@EVERY_TYPE
def test_embeddings_are_exact(kind: GGMLType, tmp_path: Path, new_team: NewTeam) -> None:
    """Blocks that add nothing leave the embedding of a token as it is, where a tap sees it."""
    tensors = target_tensors(kind=kind)
    embeddings = dequantized(*tensors["token_embd.weight"])
    for name, (its, raw) in tensors.items():
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            tensors[name] = its, np.zeros_like(raw)
    packed = open_target(write(tmp_path / "model.gguf", tensors))
    for name in load().instruction_sets:
        seen = CpuTarget(packed, new_team(2, name), taps=(0,)).verify(IDS[0], Draft("test", IDS[1:], [1.0] * 32))
        assert seen.taps is not None
        assert np.array_equal(seen.taps, embeddings[IDS]), name


@EVERY_TYPE
def test_rows_do_not_depend_on_width_threads_or_instruction_set(
    kind: GGMLType, tmp_path: Path, new_team: NewTeam
) -> None:
    packed = open_target(write(tmp_path / "model.gguf", target_tensors(kind=kind)))
    whole = logits(CpuTarget(packed, new_team(1)), IDS)
    for name in load().instruction_sets:
        assert torch.equal(logits(CpuTarget(packed, new_team(3, name)), IDS), whole), name
    target = CpuTarget(packed, new_team(2))
    for width in range(1, len(IDS)):
        assert torch.equal(logits(target, IDS[:width]), whole[:width]), width
    assert len(IDS) <= MAX_ROWS


@pytest.mark.parametrize("mix", MIXES)
def test_files_that_llama_cpp_wrote(mix: str, tmp_path: Path, new_team: NewTeam) -> None:
    experts = 4 if mix == "MXFP4_MOE" else 0
    shape = random_models.Shape("F16", 256, 2, 4, 2, 256, 256, experts=experts, used=min(experts, 2), scale=0.1)
    source = random_models.write(tmp_path / "model.gguf", shape)
    path = random_models.quantize(source, tmp_path / f"{mix}.gguf", mix)
    types = {info.ggml_type.name for info in read_header(path).tensors.values()} - {"F32"}
    assert types & MIXES[mix]
    assert types <= MIXES[mix]
    theirs = LlamaCppTarget(path, 64, 1)
    wanted = logits(theirs, IDS[:32])
    theirs.close()
    found = logits(CpuTarget(open_target(path), new_team()), IDS[:32])
    assert relative(found, wanted) < 0.05
