"""A Qwen3 GGUF as a decoder: the weights that were written, and a refusal by name of everything that does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError
from localdflash.models.weights import quants
from localdflash.models.weights.ggml_types import GGMLType

Tensors = dict[str, NDArray[np.float32]]
Write = Callable[..., Path]

SIZES: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 32,
    "attention.value_length": 32,
    "rope.freq_base": 5e5,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
BLOCK = {  # llama.cpp's name -> Hugging Face's name, shape
    "attn_norm": ("input_layernorm", (64,)),
    "attn_q": ("self_attn.q_proj", (128, 64)),
    "attn_k": ("self_attn.k_proj", (64, 64)),
    "attn_v": ("self_attn.v_proj", (64, 64)),
    "attn_output": ("self_attn.o_proj", (64, 128)),
    "attn_q_norm": ("self_attn.q_norm", (32,)),
    "attn_k_norm": ("self_attn.k_norm", (32,)),
    "ffn_norm": ("post_attention_layernorm", (64,)),
    "ffn_gate": ("mlp.gate_proj", (96, 64)),
    "ffn_up": ("mlp.up_proj", (96, 64)),
    "ffn_down": ("mlp.down_proj", (64, 96)),
}
NAMES = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"} | {
    f"blk.{i}.{theirs}.weight": f"layers.{i}.{ours}.weight" for i in range(2) for theirs, (ours, _) in BLOCK.items()
}


def tensors_of(seed: int = 0) -> Tensors:
    """Random weights under llama.cpp's names."""
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (80, 64), "output_norm.weight": (64,)}
    shapes |= {f"blk.{i}.{name}.weight": shape for i in range(2) for name, (_, shape) in BLOCK.items()}
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """(tensors, sizes, architecture, matrix type) -> a GGUF file from the reference writer."""

    def make(
        tensors: Tensors | None = None,
        sizes: dict[str, Any] | None = None,
        architecture: str = "qwen3",
        kind: str = "Q8_0",
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for name, value in (SIZES if sizes is None else sizes).items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
            add[type(value)](f"{architecture}.{name}", value)
        for name, values in (tensors_of() if tensors is None else tensors).items():
            if values.ndim == 1:
                writer.add_tensor(name, values)
                continue
            quantized = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def assert_weights(model: Decoder, tensors: Tensors, tolerance: float) -> None:
    """Every weight is in its place, within a share of the largest weight of its block of 32."""
    state = model.state_dict()
    for theirs, ours in NAMES.items():
        written, read = tensors[theirs], state[ours].numpy()
        assert read.dtype == np.float32
        if written.ndim == 1:
            np.testing.assert_array_equal(read, written)
            continue
        largest = np.abs(written.reshape(-1, 32)).max(1, keepdims=True)
        assert (np.abs(read - written).reshape(-1, 32) <= tolerance * largest).all(), ours


@pytest.mark.parametrize(("kind", "tolerance"), [("F32", 0.0), ("F16", 1e-3), ("Q8_0", 0.51 / 127 + 1e-3)])
def test_the_weights_are_those_that_were_written(write: Write, kind: str, tolerance: float) -> None:
    tensors = tensors_of()
    model = load_decoder(write(tensors, kind=kind))
    assert_weights(model, tensors, tolerance)
    assert model.lm_head.weight is model.embed_tokens.weight or torch.equal(
        model.lm_head.weight, model.embed_tokens.weight
    )
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_shape_is_that_of_the_metadata(write: Write) -> None:
    c = load_decoder(write()).config
    assert (c.vocab_size, c.hidden_size, c.num_hidden_layers, c.intermediate_size) == (80, 64, 2, 96)
    assert (c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.context_length) == (4, 2, 32, 128)
    assert (c.rope_theta, c.tie_word_embeddings, c.attention_bias) == (5e5, True, False)
    assert c.rms_norm_eps == pytest.approx(1e-5)


def test_a_free_head_is_read(write: Write) -> None:
    head = np.random.default_rng(7).normal(size=(80, 64)).astype(np.float32)
    model = load_decoder(write(tensors_of() | {"output.weight": head}, kind="F32"))
    assert not model.config.tie_word_embeddings
    np.testing.assert_array_equal(model.lm_head.weight.numpy(), head)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_decoder(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope.scaling.type": "yarn"}, ["scaled RoPE", "use llama.cpp"]),
        ({"rope.scaling.factor": 4.0}, ["scaled RoPE", "use llama.cpp"]),  # llama.cpp applies it without a type, too
        ({"rope.scale_linear": 4.0}, ["scaled RoPE"]),
        ({"rope.scaling.attn_factor": 4.0}, ["scaled RoPE"]),
        ({"rope.dimension_count": 16}, ["whole heads", "use llama.cpp"]),
        ({"attention.head_count_kv": 3}, ["4 heads", "3 key-value heads"]),
        ({"block_count": 3}, ["layers.2."]),
        *(({name: None}, [f"qwen3.{name} is missing"]) for name in ("block_count", "rope.freq_base")),
        *(({"embedding_length": value}, ["qwen3.embedding_length"]) for value in ("4", [4, 4], 4.0, 0, 2**32 - 1)),
        *(({"rope.freq_base": value}, ["qwen3.rope.freq_base"]) for value in (float("nan"), float("inf"), 0.0, -1.0)),
    ],
)
def test_metadata_that_it_does_not_run_is_named(write: Write, changes: dict[str, Any], words: list[str]) -> None:
    sizes = {name: value for name, value in (SIZES | changes).items() if value is not None}
    refused(write(sizes=sizes), *words)


def test_metadata_that_changes_nothing_is_accepted(write: Write) -> None:
    for changes in (
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 1.0, "rope.scale_linear": 1.0, "rope.scaling.attn_factor": 1.0},
        {"rope.dimension_count": 32},
    ):
        load_decoder(write(sizes=SIZES | changes))


def test_another_architecture_is_refused(write: Write) -> None:
    refused(write(architecture="gemma3"), "qwen3", "'gemma3'", "use llama.cpp")


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("output_norm.weight", None, ["norm.weight"]),
        ("blk.1.ffn_down.weight", None, ["layers.1.mlp.down_proj.weight"]),
        ("rope_freqs.weight", (64,), ["tensor rope_freqs.weight", "use llama.cpp"]),
        ("blk.0.attn_q.bias", (64,), ["tensor blk.0.attn_q.bias", "use llama.cpp"]),
        ("blk.2.attn_q.weight", (64,), ["tensor blk.2.attn_q.weight", "use llama.cpp"]),
        ("blk.0.attn_k.weight", (128, 64), ["tensor blk.0.attn_k.weight", "[128, 64]", "[64, 64]"]),
        ("output_norm.weight", (32,), ["tensor output_norm.weight", "[32]", "[64]"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    write: Write, name: str, shape: tuple[int, ...] | None, words: list[str]
) -> None:
    tensors = {theirs: values for theirs, values in tensors_of().items() if theirs != name}
    refused(write(tensors if shape is None else tensors | {name: np.zeros(shape, np.float32)}), *words)


def test_a_quantization_that_torch_cannot_read_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """gguf's writer can write none, so one is made so."""
    monkeypatch.setattr(quants, "SUPPORTED", quants.SUPPORTED - {GGMLType.Q5_0})
    refused(write(kind="Q5_0"), "token_embd.weight", "Q5_0", "llama.cpp")
