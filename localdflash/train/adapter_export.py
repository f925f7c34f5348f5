"""What a code adapter leaves: its numbers by the names of the base's tensors, and names for the markers."""

from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from localdflash.reference.gguf_decoder import rotate_half_order, state_name
from localdflash.train.adapter import Adapter
from localdflash.weights.gguf import read_header
from localdflash.weights.low_rank import EMBEDDING, AdapterNotes, sha256_of

CODE_NAME = "SmolLM2 135M localdflash code"  # what `text/fim.py` knows the format by
# Tokens of the vocabulary that no training has used become the markers.
MARKERS = {14: "<fim_prefix>", 15: "<fim_suffix>", 16: "<fim_middle>"}
TRAINED = (3, 5, *MARKERS)  # with `<repo_name>` and `<file_sep>`, which stand before other files
QUANTIZATION = "Q8_0"  # a coarser one would round most of the changes away


def notes_for(base: Path) -> AdapterNotes:
    """What the adapter of this base says of itself."""
    return AdapterNotes(sha256_of(base), CODE_NAME, QUANTIZATION, TRAINED, MARKERS)


def write_adapter(path: Path, adapter: Adapter, base: Path) -> None:
    """The trained numbers in bfloat16, rows of q and k in the order of a `llama` file."""
    tensors = {f"{EMBEDDING}.rows": _stored(adapter.embedding.rows)}
    head_dim = adapter.model.config.head_dim
    for name in read_header(base).tensors:
        linear = adapter.linears.get((state_name(name) or "").removesuffix(".weight"))
        if linear is None:
            continue
        up = linear.up.detach()
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            up = up[torch.argsort(rotate_half_order(len(up) // head_dim, head_dim))]
        tensors |= {f"{name}.up": _stored(up), f"{name}.down": _stored(linear.down)}
    part = path.with_suffix(".part")
    part.write_bytes(save(tensors, notes_for(base).as_metadata()))
    part.replace(path)


def _stored(values: Tensor) -> Tensor:
    return values.detach().bfloat16().contiguous()
