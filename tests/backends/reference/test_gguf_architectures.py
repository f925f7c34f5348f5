"""Qwen3-MoE and Llama files, converted as llama.cpp does, against Hugging Face's models and llama.cpp itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder, rotate_half_order
from localdflash.backends.reference.reference_target import TorchTarget
from localdflash.base.errors import ModelError
from localdflash.engine.draft import EMPTY_DRAFT
from tests.support.converted_models import CHOSEN, EXPERTS, HEAD_DIM, INNER, MODELS, case_of, ids_of, interleaved
from tests.support.llama_ways import WIDE
from tests.support.lossless import assert_lossless


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_hidden_states_are_those_of_hugging_face(name: str, tmp_path: Path) -> None:
    kind = {"qwen3": "F32", "llama": "Q4_1"}.get(name, "Q8_0")
    case = case_of(name, kind)
    ours = load_decoder(case.write(tmp_path / "model.gguf", kind))
    ids = torch.tensor([ids_of(120), ids_of(120, seed=1)])
    expected = case.model(ids, output_hidden_states=True)
    hidden, taps = ours(ids, torch.arange(120), causal, (0, 1))
    assert float(expected.logits.std()) > 0.5  # there is something to compare
    torch.testing.assert_close(ours.logits(hidden), expected.logits, atol=1e-4, rtol=1e-4)
    for tap, values in zip((0, 1), taps, strict=True):
        torch.testing.assert_close(values, expected.hidden_states[tap + 1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_reads_the_same_model_from_the_file(name: str, tmp_path: Path) -> None:
    path, ids = case_of(name).write(tmp_path / "model.gguf"), ids_of(60)
    target = LlamaCppTarget(path, threads=1, way=WIDE)
    target.extend(ids[:-1][:32])
    target.extend(ids[:-1][32:])
    seen = target.verify(ids[-1], EMPTY_DRAFT).logits[0].copy()
    target.close()
    model = load_decoder(path)
    with torch.inference_mode():
        expected = model.logits(model(torch.tensor([ids]), torch.arange(60), causal)[0])[0, -1].numpy()
    assert np.linalg.norm(seen - expected) < 5e-3 * np.linalg.norm(expected)  # its keys and values are halves


@pytest.mark.parametrize("name", ["qwen3moe", "llama 3.1"])
def test_is_lossless(name: str, tmp_path: Path) -> None:
    target = TorchTarget(load_decoder(case_of(name).write(tmp_path / "model.gguf")))
    assert_lossless(target, ids_of(16 + 17), (2, 16, 17), lengths=(16,))


def test_the_shape_is_that_of_the_metadata(tmp_path: Path) -> None:
    sparse = load_decoder(case_of("qwen3moe").write(tmp_path / "moe.gguf")).config
    assert (sparse.num_experts, sparse.num_experts_per_tok, sparse.moe_intermediate_size) == (EXPERTS, CHOSEN, INNER)
    assert (sparse.norm_topk_prob, sparse.qk_norm, sparse.rope_factors) == (True, True, ())
    dense = load_decoder(case_of("llama 3.1").write(tmp_path / "llama.gguf")).config
    assert (dense.num_experts, dense.intermediate_size, dense.qk_norm) == (0, 96, False)
    assert (dense.tie_word_embeddings, len(dense.rope_factors)) == (True, HEAD_DIM // 2)
    assert dense.rope_factors[0] == 1.0
    assert dense.rope_factors[-1] == pytest.approx(8.0)


def test_the_order_of_rows_undoes_the_converter() -> None:
    rows = torch.arange(6 * HEAD_DIM).unsqueeze(1)
    assert torch.equal(interleaved(rows)[rotate_half_order(6, HEAD_DIM)], rows)
    assert rotate_half_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_llama_file_may_leave_the_size_of_heads_to_the_hidden_size(tmp_path: Path) -> None:
    case = case_of("llama")
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        del case.numbers[name]
    refused(case.write(tmp_path / "wide.gguf"), "attn_q.weight", "[128, 64]", "[64, 64]")  # 4 heads of 64 / 4


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_decoder(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_experts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = case_of("qwen3moe")
    del case.numbers["expert_feed_forward_length"]
    refused(case.write(tmp_path / "length.gguf"), "qwen3moe.expert_feed_forward_length is missing")
    case = case_of("qwen3moe")
    del case.tensors["blk.1.ffn_up_exps.weight"]
    refused(case.write(tmp_path / "tensor.gguf"), "layers.1.mlp.experts.up_proj.weight")
    case = case_of("llama")
    case.numbers["expert_count"] = 8
    refused(case.write(tmp_path / "llama.gguf"), "mixture of experts", "use llama.cpp")
    case = case_of("qwen3moe")
    case.numbers["expert_used_count"] = EXPERTS + 1
    refused(case.write(tmp_path / "model.gguf"), "qwen3moe.expert_used_count is 9", "expert_count is 8")


@pytest.mark.parametrize(
    ("factors", "word"),
    [(np.ones(HEAD_DIM), "[32], not [16]"), (np.zeros(16), "positive"), (np.full(16, np.nan), "positive")],
)
def test_rope_factors_that_make_no_sense_are_refused(factors: NDArray[Any], word: str, tmp_path: Path) -> None:
    case = case_of("llama 3.1")
    case.tensors["rope_freqs.weight"] = factors.astype(np.float32)
    refused(case.write(tmp_path / "model.gguf"), "rope_freqs.weight", word)
