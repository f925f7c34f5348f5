"""Write GGUF files with the reference writer."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from localdflash.models.weights.gguf import read_header


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a value in the type that llama.cpp's converter writes for it."""
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], kind: str) -> None:
    """Add a tensor, quantized to `kind`."""
    quantized = gguf.GGMLQuantizationType[kind]
    writer.add_tensor(name, gguf.quants.quantize(values, quantized), raw_dtype=quantized)


def add_vocabulary(writer: gguf.GGUFWriter, target: Path) -> int:
    """Add the vocabulary of another file; return its size."""
    metadata = read_header(target).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(tokens)
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
    return len(tokens)


def shape_numbers(c: Any, context: int, theta: float = 1e4) -> dict[str, Any]:
    """Return the metadata that every architecture has, from Hugging Face's or our own configuration."""
    numbers = {
        "context_length": context,
        "embedding_length": c.hidden_size,
        "block_count": c.num_hidden_layers,
        "feed_forward_length": getattr(c, "intermediate_size", 0),
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.freq_base": float(theta),
    }
    if getattr(c, "num_experts", 0) and hasattr(c, "moe_intermediate_size"):  # gpt-oss has the first alone
        numbers |= {
            "expert_count": c.num_experts,
            "expert_used_count": c.num_experts_per_tok,
            "expert_feed_forward_length": c.moe_intermediate_size,
        }
    return numbers


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rounded(values: NDArray[np.float32], kind: str) -> NDArray[np.float32]:
    """Return the values after quantization to `kind`."""
    quantized = gguf.GGMLQuantizationType[kind]
    found: NDArray[np.float32] = gguf.quants.dequantize(
        gguf.quants.quantize(np.ascontiguousarray(values), quantized), quantized
    )
    return found


def tensor_name(names: gguf.TensorNameMap, key: str) -> str:
    """Return the GGUF name of a parameter of one of Hugging Face's models."""
    for end in (".weight", ".bias"):
        if key.endswith(end):
            found = names.get_name(key.removesuffix(end))
            assert found, key
            return f"{found}{end}"
    found = names.get_name(key)
    assert found, key
    return found if key.endswith("A_log") else f"{found}.weight"


def names_of(architecture: str, layers: int) -> gguf.TensorNameMap:
    """Return llama.cpp's tensor names of an architecture."""
    return gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper().replace("-", "_")), layers)


def expert_halves(key: str, values: Any) -> Iterable[tuple[str, Any]]:
    """Yield a parameter, with the gate and up projections of experts apart."""
    if not key.endswith("experts.gate_up_proj"):
        return [(key, values)]
    gate, up = values.chunk(2, 1)
    return [(key.replace("gate_up_proj", "gate_proj"), gate), (key.replace("gate_up_proj", "up_proj"), up)]
