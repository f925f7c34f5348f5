"""Models to pack, of random blocks, and a slow reading of what was packed, weight by weight as formats.h tells it."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.packing import Kind, PackedMatrix
from localdflash.models.weights.ggml_types import GGMLType

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Tensors = dict[str, tuple[GGMLType, Bytes]]

SCALES = {  # float16, in a block
    GGMLType.Q8_0: (0,),
    GGMLType.Q4_0: (0,),
    GGMLType.Q4_1: (0, 2),
    GGMLType.Q5_0: (0,),
    GGMLType.Q5_1: (0, 2),
    GGMLType.Q2_K: (80, 82),
    GGMLType.Q3_K: (108,),
    GGMLType.Q4_K: (0, 2),
    GGMLType.Q5_K: (0, 2),
    GGMLType.Q6_K: (208,),
    GGMLType.IQ4_NL: (0,),
    GGMLType.IQ4_XS: (0,),
    GGMLType.MXFP4: (),  # an exponent
}
QUANTIZED = tuple(SCALES)
PLANES = {  # bits of the planes that codes are in
    Kind.Q8_0: (8,),
    Kind.Q4_0: (4,),
    Kind.Q4_1: (4,),
    Kind.Q5_0: (4, 1),
    Kind.Q5_1: (4, 1),
    Kind.Q2_K: (2,),
    Kind.Q3_K: (2, 1),
    Kind.Q4_K: (4,),
    Kind.Q5_K: (4, 1),
    Kind.Q6_K: (8,),
    Kind.IQ4_NL: (4,),
    Kind.IQ4_XS: (4,),
    Kind.MXFP4: (4,),
}
ZERO = {Kind.Q8_0: 128, Kind.Q4_0: 8, Kind.Q5_0: 16, Kind.Q6_K: 32, Kind.Q3_K: 4}
STEPS = {  # what nibbles stand for, by gguf
    Kind.IQ4_NL: gguf.quants.IQ4_NL.kvalues,
    Kind.IQ4_XS: gguf.quants.IQ4_NL.kvalues,
    Kind.MXFP4: gguf.quants.MXFP4.kvalues,
}
HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, LAYERS, EXPERTS = 256, 512, 4, 2, 32, 70, 2, 3
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
LAYER = {
    "attn_norm": (HIDDEN,),
    "attn_q": (Q, HIDDEN),
    "attn_k": (KV, HIDDEN),
    "attn_v": (KV, HIDDEN),
    "attn_output": (HIDDEN, Q),
    "attn_q_norm": (HEAD_DIM,),
    "attn_k_norm": (HEAD_DIM,),
    "ffn_norm": (HIDDEN,),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
MIXTURE = {
    "ffn_gate_inp": (EXPERTS, HIDDEN),
    "ffn_gate_exps": (EXPERTS, INNER, HIDDEN),
    "ffn_up_exps": (EXPERTS, INNER, HIDDEN),
    "ffn_down_exps": (EXPERTS, HIDDEN, INNER),
}
NUMBERS: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": HIDDEN,
    "block_count": LAYERS,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.key_length": HEAD_DIM,
    "attention.value_length": HEAD_DIM,
    "rope.freq_base": 1e4,
    "attention.layer_norm_rms_epsilon": 1e-6,
}
MIXTURE_NUMBERS = {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": INNER}


def random_blocks(
    random: np.random.Generator, kind: GGMLType, shape: tuple[int, ...], *, any_scale: bool = False
) -> Bytes:
    """The bytes of a random tensor [..., n, row], with scales of either sign: about a hundredth, or anything finite."""
    *lead, k = shape
    if kind in (GGMLType.F32, GGMLType.F16):
        values = random.normal(0, 0.1, shape).astype(np.float32 if kind == GGMLType.F32 else np.float16)
        return values.view(np.uint8)
    blocks = random.integers(0, 256, (*lead, k // kind.block_weights, kind.block_bytes), dtype=np.uint8)
    for start in SCALES[kind]:
        scales = random.normal(0, 0.01, blocks.shape[:-1]).astype(np.float16)
        if any_scale:
            scales = random.integers(0, 0x7C00, scales.shape, np.uint16).view(np.float16) * np.sign(scales)
        blocks[..., start : start + 2] = scales[..., np.newaxis].view(np.uint8)
    if kind == GGMLType.MXFP4:
        blocks[..., 0] = random.integers(0, 255, blocks.shape[:-1]) if any_scale else random.integers(119, 124)
    return blocks.reshape(*lead, -1)


def target_tensors(architecture: str = "qwen3", kind: GGMLType = GGMLType.Q8_0, seed: int = 0) -> Tensors:
    """A tied model of an architecture: matrices of a type (attn_output in Q8_0: its rows are short), the rest F32."""
    random, layer = np.random.default_rng(seed), dict(LAYER)
    if architecture == "qwen3moe":
        layer = {name: shape for name, shape in layer.items() if name in ("ffn_norm",) or "ffn" not in name} | MIXTURE
    if architecture == "llama":
        del layer["attn_q_norm"], layer["attn_k_norm"]
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    shapes |= {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    tensors = {}
    for name, shape in shapes.items():
        its = GGMLType.F32 if len(shape) == 1 or "gate_inp" in name else kind
        its = GGMLType.Q8_0 if name.endswith("attn_output") else its
        tensors[f"{name}.weight"] = its, random_blocks(random, its, shape)
    return tensors


def write(path: Path, tensors: Tensors, architecture: str = "qwen3", **numbers: Any) -> Path:
    """A GGUF file from the reference writer, without a tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    more = MIXTURE_NUMBERS if architecture == "qwen3moe" else {}
    for name, value in (NUMBERS | more | numbers).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{name}", value)
    for name, (kind, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType(int(kind)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized(kind: GGMLType, raw: Bytes) -> Floats:
    """By gguf's own reader: [..., n, k]."""
    values: Floats = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(kind)))
    return values


def unpacked(matrix: PackedMatrix) -> Floats:
    """The weights [experts, n, k] of a packed matrix, in float32 with the products in the order of ggml's."""
    m = matrix
    panel, channel = np.divmod(np.arange(m.n), 16)
    group, within = np.divmod(np.arange(m.k), 32)
    panel, channel = panel[:, None], channel[:, None]  # [n, 1], against [k]

    def at(array: NDArray[Any] | None, block: NDArray[np.intp], *index: Any) -> Floats:
        assert array is not None
        numbers: Floats = array[:, panel, block[None, :], *index, channel].astype(np.float32)
        return numbers

    code, block = _codes(m, panel, channel, group, within), group // 8
    weights: Floats
    match m.kind:
        case Kind.MXFP4:
            weights = code * np.exp2(at(m.scales, group).astype(np.float64) - 128).astype(np.float32)
        case Kind.Q4_1 | Kind.Q5_1:
            weights = code * at(m.scales, group) + at(m.supers, group)
        case Kind.IQ4_XS:
            weights = code * (at(m.supers, block) * at(m.scales, group))
        case Kind.Q6_K | Kind.Q3_K:
            weights = code * (at(m.supers, block) * at(m.scales, group, within // 16))
        case Kind.Q2_K:
            minimum, scale = np.divmod(at(m.scales, group, within // 16), np.float32(16))
            weights = code * (at(m.supers, block, 0) * scale) - at(m.supers, block, 1) * minimum
        case Kind.Q4_K | Kind.Q5_K:
            scale, minimum = at(m.scales, group, 0), at(m.scales, group, 1)
            weights = code * (at(m.supers, block, 0) * scale) - at(m.supers, block, 1) * minimum
        case _:
            weights = code * at(m.scales, group)
    return weights


def _codes(m: PackedMatrix, panel: Any, channel: Any, group: Any, within: Any) -> Floats:
    """What the codes [experts, n, k] stand for, less their zero points."""
    quad, lane = np.divmod(within, 4)
    code, start, below = np.zeros((m.experts, m.n, m.k), np.uint8), 0, 0
    for bits in PLANES[m.kind]:
        vector, place = np.divmod(quad, 8 // bits)
        byte = m.codes[:, panel, group, start + 64 * vector + 4 * channel + lane]
        code |= ((byte >> (place * bits)) & (2**bits - 1)).astype(np.uint8) << below
        start, below = start + 64 * bits, below + bits
    if m.kind in STEPS:
        return np.array(STEPS[m.kind], np.float32)[code]
    return code.astype(np.float32) - ZERO.get(m.kind, 0)
