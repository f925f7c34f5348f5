"""GGUF files of random weights in the shape and the types of a real pair, to measure speed. Needs numpy only.

Types are those of llama.cpp's Q4_K_M, Q4_0 or Q8_0 files. Scales keep activations in the range of float16. Blocks come
from a pool of random blocks, so that writing takes no longer than the disk needs.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import SHORT_KEY, DFlashConfig
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf_reader import ARRAY, BOOL, FLOAT32, INT32, STRING, UINT32, encode_text

QWEN3_8B = DecoderConfig(
    vocab_size=151_936,
    hidden_size=4096,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=12_288,
    rope_theta=1e6,
    context_length=40_960,
    tie_word_embeddings=False,
)
QWEN3_4B = replace(QWEN3_8B, hidden_size=2560, num_attention_heads=32, intermediate_size=9728, tie_word_embeddings=True)
QWEN3_1_7B = replace(QWEN3_4B, hidden_size=2048, num_hidden_layers=28, num_attention_heads=16, intermediate_size=6144)
QWEN3_0_6B = replace(QWEN3_1_7B, hidden_size=1024, intermediate_size=3072)
# Eight of the 48 layers of Qwen3 30B-A3B: with all, the file would take 17 GB.
QWEN3_30B_A3B_CUT = replace(
    QWEN3_8B,
    hidden_size=2048,
    num_hidden_layers=8,
    num_key_value_heads=4,
    intermediate_size=6144,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)
SHAPES = {"0.6B": QWEN3_0_6B, "1.7B": QWEN3_1_7B, "4B": QWEN3_4B, "30B-A3B": QWEN3_30B_A3B_CUT}
TAPS = {QWEN3_0_6B: (1, 7, 13, 19, 25), QWEN3_1_7B: (1, 7, 13, 19, 25), QWEN3_4B: (1, 9, 17, 25, 33)}
TAPS[QWEN3_30B_A3B_CUT] = (1, 2, 3, 5, 6)
QWEN3_8B_DRAFTER = DFlashConfig(replace(QWEN3_8B, num_hidden_layers=5), 16, 151_669, (1, 9, 17, 25, 33))
TINY = replace(
    QWEN3_8B,
    vocab_size=512,
    hidden_size=256,
    num_hidden_layers=8,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    intermediate_size=512,
    context_length=4096,
)
TINY_DRAFTER = DFlashConfig(replace(TINY, num_hidden_layers=2), 16, 511, (1, 3, 5))

ALIGNMENT = 32
POOL = 1 << 16  # random blocks of a type
STD = 0.02  # standard deviation of weights
# Offset of each float16 scale in a block, and the value that gives the weights a standard deviation of STD. The second
# scale (Q4_1's minimum, Q4_K's scale of the minimums) makes their mean zero, since the mean random code is 7.5.
SCALES: dict[GGMLType, dict[int, float]] = {
    GGMLType.Q4_0: {0: STD / 4.64},
    GGMLType.Q4_1: {0: STD / 4.61, 2: -7.5 * STD / 4.61},
    GGMLType.Q4_K: {0: STD / 258, 2: 7.5 * STD / 258},
    GGMLType.Q6_K: {208: STD / 1365},
    GGMLType.Q8_0: {0: STD / 74},
}
# Value of `general.file_type`, and the type of the LM head, as llama.cpp chooses them.
FILE_TYPES = {GGMLType.Q4_0: 2, GGMLType.Q4_1: 3, GGMLType.Q8_0: 7, GGMLType.Q4_K: 15}
HEADS = dict.fromkeys((GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q4_K), GGMLType.Q6_K) | {GGMLType.Q8_0: GGMLType.Q8_0}


def published_drafter(target: DecoderConfig, short: int) -> DFlashConfig:
    """Return a target's drafter in the published shape: five layers, blocks of 16; `short`: tokens, 0 for all."""
    spread = range(0, target.vocab_size, target.vocab_size // short) if short else range(0)
    decoder = replace(target, num_hidden_layers=5, num_experts=0)
    return DFlashConfig(decoder, 16, target.vocab_size - 1, TAPS[target], short=tuple(spread)[:short])


@dataclass(frozen=True)
class Tensor:
    """Tensor to write; shape as in torch, rows first."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLType

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor in the file."""
        return prod(self.shape) // self.kind.block_weights * self.kind.block_bytes


def write_target(path: Path, config: DecoderConfig, name: str, kind: GGMLType = GGMLType.Q4_K) -> None:
    """Write a target of one type, Q4_0, Q4_1 or Q8_0; Q4_K is Q4_K_M's mix. A tied embedding has the head's type."""
    c, prefix, head = config, "qwen3moe" if config.num_experts else "qwen3", HEADS[kind]
    tensors = [
        Tensor("token_embd.weight", (c.vocab_size, c.hidden_size), head if c.tie_word_embeddings else kind),
        Tensor("output_norm.weight", (c.hidden_size,), GGMLType.F32),
        *_layers(config, kind, GGMLType.Q6_K if kind == GGMLType.Q4_K else kind),
    ]
    if not c.tie_word_embeddings:
        tensors.append(Tensor("output.weight", (c.vocab_size, c.hidden_size), head))
    metadata = [_string("general.architecture", prefix), *_metadata(prefix, name, config, FILE_TYPES[kind])]
    _write(path, metadata, tensors)


def write_drafter(path: Path, config: DFlashConfig, kind: GGMLType, name: str) -> None:
    """Write a drafter whose matrices all are of one type; embedding and head are the target's."""
    c, prefix = config.decoder, "dflash"
    tensors = [
        Tensor("fc.weight", (c.hidden_size, len(config.taps) * c.hidden_size), kind),
        Tensor("enc.output_norm.weight", (c.hidden_size,), GGMLType.F32),
        Tensor("output_norm.weight", (c.hidden_size,), GGMLType.F32),
        *_layers(c, kind, kind),
    ]
    metadata = [
        _string("general.architecture", prefix),
        *_metadata(prefix, name, c, FILE_TYPES[kind]),
        _number("tokenizer.ggml.mask_token_id", config.mask_token_id),
        _number(f"{prefix}.block_size", config.block_size),
        _numbers(f"{prefix}.target_layers", [tap + 1 for tap in config.taps]),  # llama.cpp counts layer inputs
        *([_numbers(SHORT_KEY, config.short)] if config.short else ()),
    ]
    _write(path, metadata, tensors)


def more_bits(layer: int, layers: int) -> bool:
    """Return whether llama.cpp's Q4_K_M keeps attn_v and ffn_down of this layer in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _layers(config: DecoderConfig, kind: GGMLType, fine: GGMLType) -> Iterator[Tensor]:
    c = config
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    for layer in range(c.num_hidden_layers):
        mixed = fine if more_bits(layer, c.num_hidden_layers) else kind
        for name, shape, tensor_kind in (
            ("attn_norm", (c.hidden_size,), GGMLType.F32),
            ("attn_q", (q, c.hidden_size), kind),
            ("attn_k", (kv, c.hidden_size), kind),
            ("attn_v", (kv, c.hidden_size), mixed),
            ("attn_output", (c.hidden_size, q), kind),
            ("attn_q_norm", (c.head_dim,), GGMLType.F32),
            ("attn_k_norm", (c.head_dim,), GGMLType.F32),
            ("ffn_norm", (c.hidden_size,), GGMLType.F32),
            *(_experts(c, kind, mixed) if c.num_experts else _mlp(c, kind, mixed)),
        ):
            yield Tensor(f"blk.{layer}.{name}.weight", shape, tensor_kind)


def _mlp(c: DecoderConfig, kind: GGMLType, mixed: GGMLType) -> Iterator[tuple[str, tuple[int, ...], GGMLType]]:
    yield "ffn_gate", (c.intermediate_size, c.hidden_size), kind
    yield "ffn_up", (c.intermediate_size, c.hidden_size), kind
    yield "ffn_down", (c.hidden_size, c.intermediate_size), mixed


def _experts(c: DecoderConfig, kind: GGMLType, mixed: GGMLType) -> Iterator[tuple[str, tuple[int, ...], GGMLType]]:
    yield "ffn_gate_inp", (c.num_experts, c.hidden_size), GGMLType.F32
    yield "ffn_gate_exps", (c.num_experts, c.moe_intermediate_size, c.hidden_size), kind
    yield "ffn_up_exps", (c.num_experts, c.moe_intermediate_size, c.hidden_size), kind
    yield "ffn_down_exps", (c.num_experts, c.hidden_size, c.moe_intermediate_size), mixed


def _metadata(prefix: str, name: str, config: DecoderConfig, file_type: int) -> list[bytes]:
    c = config
    return [
        _string("general.name", name),
        _number("general.file_type", file_type),
        _number(f"{prefix}.context_length", c.context_length),
        _number(f"{prefix}.embedding_length", c.hidden_size),
        _number(f"{prefix}.block_count", c.num_hidden_layers),
        _number(f"{prefix}.feed_forward_length", c.intermediate_size),
        *([_number(f"{prefix}.{key}", value) for key, value in _expert_numbers(c)] if c.num_experts else ()),
        _number(f"{prefix}.attention.head_count", c.num_attention_heads),
        _number(f"{prefix}.attention.head_count_kv", c.num_key_value_heads),
        _number(f"{prefix}.attention.key_length", c.head_dim),
        _number(f"{prefix}.attention.value_length", c.head_dim),
        _pair(f"{prefix}.rope.freq_base", FLOAT32, struct.pack("<f", c.rope_theta)),
        _pair(f"{prefix}.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", c.rms_norm_eps)),
        _number(f"{prefix}.vocab_size", c.vocab_size),
        _string("tokenizer.ggml.model", "gpt2"),
        _string("tokenizer.ggml.pre", "qwen2"),
        _strings("tokenizer.ggml.tokens", [f"<{i}>" for i in range(c.vocab_size)]),
        _numbers("tokenizer.ggml.token_type", [1] * c.vocab_size, INT32),
        _strings("tokenizer.ggml.merges", ["< 0"]),
        _number("tokenizer.ggml.eos_token_id", c.vocab_size - 1),
        _pair("tokenizer.ggml.add_bos_token", BOOL, b"\0"),
    ]


def _expert_numbers(c: DecoderConfig) -> Iterator[tuple[str, int]]:
    yield "expert_count", c.num_experts
    yield "expert_used_count", c.num_experts_per_tok
    yield "expert_feed_forward_length", c.moe_intermediate_size


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return encode_text(key) + struct.pack("<I", kind) + value


def _string(key: str, value: str) -> bytes:
    return _pair(key, STRING, encode_text(value))


def _number(key: str, value: int) -> bytes:
    return _pair(key, UINT32, struct.pack("<I", value))


def _numbers(key: str, values: Sequence[int], kind: int = UINT32) -> bytes:
    return _pair(key, ARRAY, struct.pack("<IQ", kind, len(values)) + struct.pack(f"<{len(values)}i", *values))


def _strings(key: str, values: Sequence[str]) -> bytes:
    return _pair(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + b"".join(map(encode_text, values)))


def _write(path: Path, metadata: Sequence[bytes], tensors: Sequence[Tensor]) -> None:
    """Write header, tensor descriptions and data, under another name until the file is complete."""
    header, offset = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata), 0
    for tensor in tensors:
        dimensions = tensor.shape[::-1]
        header += encode_text(tensor.name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        header += struct.pack("<IQ", tensor.kind, offset)
        offset += tensor.nbytes + -tensor.nbytes % ALIGNMENT
    unfinished, random = path.with_suffix(".part"), np.random.default_rng(0)
    with unfinished.open("wb") as stream:
        stream.write(header + bytes(-len(header) % ALIGNMENT))
        for tensor in tensors:
            _write_blocks(stream, tensor, random)
            stream.write(bytes(-tensor.nbytes % ALIGNMENT))
    unfinished.replace(path)


def _write_blocks(stream: BinaryIO, tensor: Tensor, random: np.random.Generator) -> None:
    if tensor.kind == GGMLType.F32:
        is_router = len(tensor.shape) == 2  # equal weights would send all tokens to the same experts
        values = random.normal(0, STD, tensor.shape) if is_router else np.ones(tensor.shape)
        stream.write(values.astype(np.float32).tobytes())
        return
    pool = random_blocks(tensor.kind)
    left, start = tensor.nbytes // tensor.kind.block_bytes, int(random.integers(POOL))
    while left:
        part = pool[start : start + left]
        stream.write(part.data)
        left, start = left - len(part), 0


@cache
def random_blocks(kind: GGMLType) -> NDArray[np.uint8]:
    """Return blocks of weights of about STD: uint8 [POOL, bytes per block]."""
    random = np.random.default_rng(int(kind))
    blocks = random.integers(0, 256, (POOL, kind.block_bytes), dtype=np.uint8)
    for offset, size in SCALES[kind].items():
        scale = (random.uniform(0.9, 1.1, (POOL, 1)) * size).astype(np.float16)
        if kind == GGMLType.Q4_0:  # its codes reach from -8 to 7: signs make the mean zero, as in real files
            scale *= random.choice((np.float16(-1), np.float16(1)), scale.shape)
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    return blocks
