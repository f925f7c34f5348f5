"""Write and read the file of a code adapter: LoRA tensors named like those of the base model, and marker tokens."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from localdflash.backends.reference.gguf_decoder import rotate_half_order, state_name
from localdflash.base.errors import ModelError
from localdflash.lab.train.adapter import AdaptedLinear, Adapter
from localdflash.lab.train.whole_file import replacing
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.low_rank import EMBEDDING, AdapterNotes, read_adapter, sha256_of

CODE_NAME = "SmolLM2 135M localdflash code"  # identifies the format in `text/fim_formats.py`
# Tokens that SmolLM2 was never trained on become the markers.
MARKERS = {14: "<fim_prefix>", 15: "<fim_suffix>", 16: "<fim_middle>"}
TRAINED = (3, 5, *MARKERS)  # ids of the trained rows; 3 and 5 are `<repo_name>` and `<file_sep>`
QUANTIZATION = "Q8_0"  # a coarser quantization would lose most of the adapter's changes


def notes_for(base: Path) -> AdapterNotes:
    """Return the metadata of an adapter for this base model."""
    return AdapterNotes(sha256_of(base), CODE_NAME, QUANTIZATION, TRAINED, MARKERS)


def write_adapter(path: Path, adapter: Adapter, base: Path) -> None:
    """Write the adapter in bfloat16, with the rows of q and k in the order of a GGUF `llama` file."""
    tensors = {f"{EMBEDDING}.rows": _stored(adapter.embedding.rows)}
    for name, linear, order in _adapted_matrices(adapter, base):
        tensors |= {f"{name}.up": _stored(linear.up[torch.argsort(order)]), f"{name}.down": _stored(linear.down)}
    with replacing(path) as part:
        part.write_bytes(save(tensors, notes_for(base).as_metadata()))


@torch.no_grad()
def read_into(adapter: Adapter, path: Path, base: Path) -> None:
    """Load the parameters of `path` into `adapter`; ModelError if shapes, trained tokens or the base differ."""
    notes, values_by_name = read_adapter(path, base)
    targets = {f"{EMBEDDING}.rows": (adapter.embedding.rows, torch.arange(len(TRAINED)))}
    for name, linear, order in _adapted_matrices(adapter, base):
        targets |= {f"{name}.up": (linear.up, order), f"{name}.down": (linear.down, torch.arange(len(linear.down)))}
    shapes = {name: parameter.shape for name, (parameter, _) in targets.items()}
    if notes.rows != TRAINED or shapes != {name: values.shape for name, values in values_by_name.items()}:
        raise ModelError(f"{path}: not an adapter of rank {adapter.rank} with the trained tokens for {base}")
    for name, (parameter, order) in targets.items():
        parameter.copy_(torch.from_numpy(values_by_name[name])[order])
    adapter.merge()


def rank_of(path: Path, base: Path) -> int:
    """Return the rank of the adapter in a file."""
    values_by_name = read_adapter(path, base)[1]
    return next(len(values) for name, values in values_by_name.items() if name.endswith(".down"))


def _adapted_matrices(adapter: Adapter, base: Path) -> Iterator[tuple[str, AdaptedLinear, Tensor]]:
    """Yield name, adapter and row order (`ours = file[order]`) of each matrix of the base that has an adapter."""
    head_dim = adapter.model.config.head_dim
    for name in read_header(base).tensors:
        linear = adapter.linears.get((state_name(name) or "").removesuffix(".weight"))
        if linear is None:
            continue
        rows = len(linear.up)
        is_rotated = name.endswith(("attn_q.weight", "attn_k.weight"))
        yield name, linear, rotate_half_order(rows // head_dim, head_dim) if is_rotated else torch.arange(rows)


def _stored(values: Tensor) -> Tensor:
    return values.detach().bfloat16().contiguous().cpu()
