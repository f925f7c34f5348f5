"""Models to pack, of random blocks."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from localdflash.backends.cpu.packing import PackedMatrix, pack_rows
from localdflash.models.weights.ggml_types import GGMLType
from tests.support.gguf_files import HALF_SCALES, random_blocks
from tests.support.gguf_writing import add_metadata, finish

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Tensors = dict[str, tuple[GGMLType, Bytes]]

SCALES = {GGMLType[name]: offsets for name, offsets in HALF_SCALES.items()}
QUANTIZED = tuple(SCALES)
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
        tensors[f"{name}.weight"] = its, random_blocks(random, its.name, shape)
    return tensors


def write(path: Path, tensors: Tensors, architecture: str = "qwen3", **numbers: Any) -> Path:
    """Write a GGUF file with the reference writer, without a tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    more = MIXTURE_NUMBERS if architecture == "qwen3moe" else {}
    for name, value in (NUMBERS | more | numbers).items():
        add_metadata(writer, f"{architecture}.{name}", value)
    for name, (kind, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType(int(kind)))
    finish(writer)
    return path


def dequantized(kind: GGMLType, raw: Bytes) -> Floats:
    """Return the values [..., n, k] that gguf's own reader finds."""
    values: Floats = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(kind)))
    return values


def holds(matrix: PackedMatrix, kind: GGMLType, raw: Bytes, to_q4_0: bool = False) -> bool:
    """Return whether a packed matrix holds the rows of a tensor [..., n, row], which test_products multiplies."""
    experts = [pack_rows(rows, kind, to_q4_0) for rows in raw.reshape(matrix.experts, matrix.n, -1)]
    arrays = [array for array in (matrix.codes, matrix.scales, matrix.supers) if array is not None]
    wanted = [np.stack(parts) for parts in zip(*experts, strict=True)]
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(arrays, wanted, strict=True))
