"""Whether a drafter's file and a target's belong together, by their headers."""

from pathlib import Path

from localdflash.model.dflash_config import check_fit
from localdflash.model.dflash_file import config_of_file
from localdflash.weights import gguf, safetensors


def check_files(target: Path, drafter: Path | None) -> None:
    """Raise ModelError if a header is broken, or the drafter does not fit this target. Reads headers only."""
    header = gguf.read_header(target)
    if drafter is None:
        return
    blocks = header.require(f"{header.architecture}.block_count", int)
    hidden = header.require(f"{header.architecture}.embedding_length", int)
    vocabulary = header.require("tokenizer.ggml.tokens", list)
    if drafter.suffix == ".safetensors":
        safetensors.read_header(drafter)
    check_fit(config_of_file(drafter), hidden, len(vocabulary), blocks, str(drafter))
