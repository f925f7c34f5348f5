"""A base and its adapter as one GGUF file, with the same bytes on every machine.

Sums are made of numpy's single multiplications and additions in float64 and in one order: a matrix product would round
as the processor's library likes.
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from localdflash.errors import ModelError
from localdflash.model.gguf_config import decoder_config
from localdflash.reference.gguf_decoder import rotate_half_order, state_name
from localdflash.train.adapter_corpus import sha256_of
from localdflash.train.adapter_export import copied, finish
from localdflash.weights.gguf import read_header

EMBEDDING = "token_embd.weight"
FILE_TYPES = {"Q4_1": 3, "Q8_0": 7, "Q5_1": 9}  # llama_ftype


def merge(base: Path, adapter: Path, path: Path, quantization: str) -> None:
    """Write base plus adapter to `path`; ModelError where the adapter is another base's.

    Matrices of blocks get the quantization; all else keeps its type.
    """
    about, tensors = _read(adapter)
    if sha256_of(base) != about.get("base_sha256"):
        raise ModelError(f"{adapter}: trained for another file than {base}")
    head_dim = decoder_config(read_header(base)).head_dim
    reader = gguf.GGUFReader(base)
    writer = copied(reader, path, general_file_type=FILE_TYPES[quantization])
    for tensor in reader.tensors:
        ours = (state_name(tensor.name) or "").removesuffix(".weight")
        data, kind = np.array(tensor.data), tensor.tensor_type
        if tensor.name == EMBEDDING:
            data[[int(token) for token in about["tokens"].split(",")]] = gguf.quantize(
                tensors["embed_tokens.rows"], kind
            )
        elif f"{ours}.up" in tensors:
            up = tensors[f"{ours}.up"]
            if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
                up = up[np.argsort(rotate_half_order(len(up) // head_dim, head_dim).numpy())]
            values = _sum(gguf.dequantize(data, kind), up, tensors[f"{ours}.down"])
            kind = gguf.GGMLQuantizationType[quantization]
            data = gguf.quantize(values, kind)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    finish(writer, path)


def _sum(base: NDArray[np.float32], up: NDArray[np.float32], down: NDArray[np.float32]) -> NDArray[np.float32]:
    """Base + up @ down."""
    total = base.astype(np.float64)
    for column, row in zip(up.T.astype(np.float64), down.astype(np.float64), strict=True):
        total += column[:, None] * row
    return total.astype(np.float32)


def _read(path: Path) -> tuple[dict[str, str], dict[str, NDArray[np.float32]]]:
    with safe_open(path, "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about: Any = file.metadata()
    return about or {}, {name: tensor.float().numpy() for name, tensor in tensors.items()}
