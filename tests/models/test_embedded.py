"""The embedded pair: its files, agreement with independent oracles, and lossless drafting on held-out prompts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.bench.bench_run import prompt_ids, run_prompt
from localdflash.lab.bench.prompt_set import load
from localdflash.lab.train.corpus import read_list
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Backend
from localdflash.models.load_options import Options
from localdflash.models.weights.gguf import read_header
from tests.support.costs import drafting_pays

EMBEDDED = Path(__file__).parents[2] / "localdflash" / "models" / "embedded"
HF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedPair]:
    with LoadedPair(Options(threads=1, backend="llama.cpp")) as pair:
        yield pair


def transformers_model(path: Path) -> Qwen3ForCausalLM:
    """The target in transformers, its weights dequantized by gguf's own numpy code."""
    m = read_header(path).metadata
    config = Qwen3Config(
        vocab_size=m["qwen3.vocab_size"],
        hidden_size=m["qwen3.embedding_length"],
        intermediate_size=m["qwen3.feed_forward_length"],
        num_hidden_layers=m["qwen3.block_count"],
        num_attention_heads=m["qwen3.attention.head_count"],
        num_key_value_heads=m["qwen3.attention.head_count_kv"],
        head_dim=m["qwen3.attention.key_length"],
        rms_norm_eps=m["qwen3.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": m["qwen3.rope.freq_base"]},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Qwen3ForCausalLM(config).eval()
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            state[f"model.layers.{parts[1]}.{HF_NAMES[parts[2]]}.weight"] = values
        else:
            state[{"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[parts[0]]] = values
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@torch.inference_mode()
def test_features_and_logits_agree_with_transformers(loaded: LoadedPair) -> None:
    ids = torch.tensor([prompt_ids(loaded, load(1)[1])[0][:300]])
    ours = load_decoder(EMBEDDED / "target.gguf")
    theirs = transformers_model(EMBEDDED / "target.gguf")(ids, output_hidden_states=True)
    taps = (1, 3, 4)
    hidden, tapped = ours(ids, torch.arange(ids.shape[1]), causal, taps)
    assert relative(ours.logits(hidden), theirs.logits) < 1e-3
    for tap, feature in zip(taps, tapped, strict=True):
        assert relative(feature, theirs.hidden_states[tap + 1]) < 1e-3


@pytest.mark.parametrize(("backend", "count"), [("cpu", 2), ("llama.cpp", 1), ("torch", 1)])
def test_drafting_does_not_change_the_text(backend: Backend, count: int, request: pytest.FixtureRequest) -> None:
    if backend == "cpu":
        request.getfixturevalue("cpu_engine")
    drafted = 0
    options = Options(backend=backend, threads=1, costs=drafting_pays)
    with LoadedPair(options) as pair, LoadedPair(replace(options, draft=False)) as plain:
        for prompt in load(count):
            ids, ends = prompt_ids(pair, prompt)
            limit = min(prompt.max_tokens, 32)
            with_drafts = run_prompt(pair.pair, ids, ends, limit)
            assert run_prompt(plain.pair, ids, ends, limit).ids == with_drafts.ids, prompt.id
            drafted += with_drafts.stats.accepted
    assert drafted > 0


def test_the_files_are_small_and_the_card_names_every_source() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED.iterdir() if path.is_file()) < 40e6
    card = (EMBEDDED / "MODEL_CARD.md").read_text(encoding="utf-8")
    for package in read_list():
        assert f"| {package.name} | {package.version} | {package.licence} |" in card
