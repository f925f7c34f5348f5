"""A short draft vocabulary: the tokens that the target itself writes most often, for the drafter's proposal head.

Most of a quantized drafter's step reads the head, and a few ten thousand tokens cover nearly all of a model's output.
Tokens are counted in the model's own output, since tokens outside the list are never proposed. The target's head is
unmodified, so answers do not change.

A drafter's files contain the ids (`short` in dflash_config.py). During training, a safetensors file in the run's folder
contains them, as its only tensor `ids`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from localdflash.base.errors import ModelError, UsageError
from localdflash.models.weights import safetensors

FILE = "short_vocabulary.safetensors"


class ShortVocabulary(NamedTuple):
    """Chosen token ids, ascending so that the lowest id wins a tie, and the share of the target's output they cover."""

    ids: Tensor  # int32 [size]
    coverage: float  # share of the counted tokens that are in `ids`; 1.0 if nothing was counted
    counted: int  # number of counted tokens


def count(ids: Iterable[Sequence[int]], vocab_size: int, size: int, always: Sequence[int] = ()) -> ShortVocabulary:
    """Choose `size` of `vocab_size` tokens: those in `always` (end tokens), then the most frequent in `ids`.

    Of equally frequent tokens the lowest ids come first, so unused ones fill up from zero. UsageError for a size that
    does not fit, ModelError for an id outside the vocabulary.
    """
    fixed = sorted(set(always))
    if not len(fixed) <= size <= vocab_size or size < 1:
        limits = f"{max(len(fixed), 1)} (the fixed tokens) to {vocab_size}"
        raise UsageError(f"draft vocabulary of {size} tokens: expected a size from {limits}")
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for sequence in ids:
        tokens = check_ids(sequence, vocab_size)
        counts.index_add_(0, tokens, torch.ones_like(tokens))
    rank = counts.clone()
    rank[check_ids(fixed, vocab_size)] = torch.iinfo(torch.int64).max
    short_ids = torch.argsort(rank, descending=True, stable=True)[:size].sort().values
    total = int(counts.sum())
    coverage = int(counts[short_ids].sum()) / total if total else 1.0
    return ShortVocabulary(short_ids.to(torch.int32), coverage, total)


def save(path: Path, short: ShortVocabulary) -> None:
    """Write the ids, with their coverage as metadata; UsageError if the file cannot be written."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    metadata = {"coverage": f"{short.coverage:.6f}", "counted_tokens": str(short.counted)}
    try:
        save_file({"ids": short.ids}, path, metadata)
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: cannot be written: {error}; choose a file in an existing folder") from None


def load(path: Path, vocab_size: int) -> Tensor:
    """Read the ids for a target of `vocab_size` tokens, int32 [size]; ModelError if they are invalid."""
    tensors = safetensors.load(path)
    ids = tensors.get("ids")
    again = "run `localdflash train vocabulary` again, or delete the file"
    if ids is None or len(tensors) > 1 or ids.dtype != torch.int32 or ids.dim() != 1 or not len(ids):
        raise ModelError(f"{path}: expected one tensor, ids, of type int32 [size]; {again}")
    if bool((ids[1:] <= ids[:-1]).any()):
        raise ModelError(f"{path}: the ids do not ascend; {again}")
    if not 0 <= int(ids[0]) <= int(ids[-1]) < vocab_size:
        raise ModelError(f"{path}: ids {int(ids[0])} to {int(ids[-1])} are not all below {vocab_size}; {again}")
    return ids


def check_ids(ids: Sequence[int], vocab_size: int) -> Tensor:
    """Return the ids as a tensor, int64 [n]; ModelError if one is outside the vocabulary."""
    tensor = torch.tensor(ids, dtype=torch.int64)
    outside = tensor[(tensor < 0) | (tensor >= vocab_size)]
    if len(outside):
        bad = int(outside[0])
        raise ModelError(
            f"token {bad}: outside the vocabulary of {vocab_size} tokens; use ids of the target's tokenizer"
        )
    return tensor
