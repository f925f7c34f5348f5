"""Checks whether a drafter's file fits a target, from their headers."""

from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.gguf_config import count_layers
from localdflash.models.weights import safetensors
from localdflash.models.weights.gguf import GGUFHeader, read_header

COMPANIONS = ("dflash", "eagle3", "gemma4-assistant", "clip")  # architectures of files that belong to another model


def is_companion(header: GGUFHeader) -> bool:
    """Return whether a file is part of another model: a drafter, an adapter, or the encoder of images."""
    return header.metadata.get("general.type", "model") != "model" or header.architecture in COMPANIONS


def count_prediction_bytes(header: GGUFHeader) -> int:
    """Return the bytes of the layers of multi-token prediction, which are the last layers and are not loaded."""
    count = header.metadata.get(f"{header.architecture}.nextn_predict_layers", 0)
    first = count_layers(header) - (count if isinstance(count, int) else 0)
    unloaded = tuple(f"blk.{block}." for block in range(first, count_layers(header)))
    return sum(info.nbytes for name, info in header.tensors.items() if name.startswith(unloaded))


def check_drafter(target: Path, drafter: Path) -> None:
    """Raise ModelError if the drafter is of another kind than DFlash, or does not fit this target."""
    if drafter.suffix == ".gguf" and (architecture := read_header(drafter).architecture) != "dflash":
        raise ModelError(
            f"{drafter}: a model of architecture {architecture!r}, not a DFlash drafter; see docs/models.md for others"
        )
    header = read_header(target)
    hidden = header.require(f"{header.architecture}.embedding_length", int)
    vocabulary = len(header.require("tokenizer.ggml.tokens", list))
    check_fit(config_of_file(drafter), hidden, vocabulary, count_layers(header), str(drafter))


def check_files(target: Path, drafter: Path | None) -> None:
    """Raise ModelError if a header is broken, or the drafter does not fit this target. Reads headers only."""
    read_header(target)
    if drafter is None:
        return
    if drafter.suffix == ".safetensors":
        safetensors.read_header(drafter)
    check_drafter(target, drafter)
