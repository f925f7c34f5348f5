"""Qwen3-shaped models of random weights, tens to hundreds of megabytes, written in a second."""

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np

from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_writing import add_metadata, add_vocabulary, finish, shape_numbers

EMBEDDED = Path(__file__).parents[2] / "localdflash" / "models" / "embedded" / "target.gguf"
BLOCKS = {"Q8_0": (34, 1e-4), "Q4_0": (18, 2e-3)}  # bytes of 32 weights, beginning with a two-byte scale


@dataclass(frozen=True)
class Shape:
    """Hidden size, layers, heads, key-value heads, width of an MLP, context."""

    quantization: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    context: int
    head_dim: int = 64
    experts: int = 0
    used: int = 0
    scale: float = 0.01  # bytes of weights in F16; above that, routing also depends on the row


def write(path: Path, shape: Shape) -> Path:
    """Write the model; its vocabulary is the embedded pair's."""
    writer = gguf.GGUFWriter(path, "qwen3moe" if shape.experts else "qwen3")
    heads = (shape.heads, shape.kv_heads, shape.head_dim)
    config = DecoderConfig(0, shape.hidden, shape.layers, *heads, shape.mlp, num_experts=shape.experts)
    config = replace(config, num_experts_per_tok=shape.used, moe_intermediate_size=shape.mlp)
    for name, value in shape_numbers(config, shape.context, 1e6).items():
        add_metadata(writer, f"{writer.arch}.{name}", value)
    vocabulary = add_vocabulary(writer, EMBEDDED)
    random = np.random.default_rng(0)
    h, q, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    _matrix(writer, random, shape, "token_embd", vocabulary, h)
    writer.add_tensor("output_norm.weight", np.ones(h, np.float32))
    for layer in range(shape.layers):
        name = f"blk.{layer}."
        for norm, width in (("attn", h), ("ffn", h), ("attn_q", shape.head_dim), ("attn_k", shape.head_dim)):
            writer.add_tensor(f"{name}{norm}_norm.weight", np.ones(width, np.float32))
        for part, n, k in (("attn_q", q, h), ("attn_k", kv, h), ("attn_v", kv, h), ("attn_output", h, q)):
            _matrix(writer, random, shape, name + part, n, k)
        ends = "_exps" if shape.experts else ""
        if ends:
            gate = np.ones((shape.experts, h), np.float32)
            if shape.scale > 0.01:
                gate = random.standard_normal((shape.experts, h), np.float32)
            writer.add_tensor(f"{name}ffn_gate_inp.weight", gate)
        for part, n, k in (("ffn_gate", shape.mlp, h), ("ffn_up", shape.mlp, h), ("ffn_down", h, shape.mlp)):
            _matrix(writer, random, shape, name + part + ends, *([shape.experts] if ends else []), n, k)
    finish(writer)
    return path


def write_header_alone(source: Path, path: Path) -> Path:
    """Write a file of the same size with the header of another and no weights."""
    with source.open("rb") as stream, path.open("wb") as copy:
        copy.write(stream.read(read_header(source).data_offset))
        copy.truncate(source.stat().st_size)
    return path


def quantize(source: Path, target: Path, kind: str) -> Path:
    """Quantize a file to another type, by llama.cpp."""
    import llama_cpp.llama_cpp as api

    from localdflash.backends.llamacpp import llama_library

    llama_library.initialize()
    params = api.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = gguf.LlamaFileType[f"MOSTLY_{kind}"], True, 1
    if api.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        raise RuntimeError(f"{source} cannot be quantized to {kind}")
    return target


def _matrix(writer: gguf.GGUFWriter, random: np.random.Generator, shape: Shape, name: str, *size: int) -> None:
    if shape.quantization == "F16":
        values = (random.random(size, dtype=np.float32) * 2 - 1) * shape.scale
        writer.add_tensor(f"{name}.weight", values.astype(np.float16))
        return
    nbytes, scale = BLOCKS[shape.quantization]
    blocks = random.integers(0, 256, (*size[:-1], size[-1] // 32, nbytes), dtype=np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    kind = gguf.GGMLQuantizationType[shape.quantization]
    writer.add_tensor(f"{name}.weight", blocks.reshape(*size[:-1], -1), raw_dtype=kind)
