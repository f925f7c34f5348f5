"""What kind of drafter a file is for a target, and whether the two belong together: by their headers.

Beside the DFlash family there are EAGLE-3, any model of the target's vocabulary, and the head for the token after the
next (multi-token prediction) that a target's own file may hold: there the target's file is the drafter's, too.
"""

from pathlib import Path
from typing import Literal

from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.eagle3 import check_eagle3
from localdflash.models.weights import safetensors
from localdflash.models.weights.gguf import GGUFHeader, read_header

Kind = Literal["dflash", "eagle3", "draft-model", "mtp"]

WITH_HEADS = ("qwen35", "qwen35moe")  # whose head a test ran; llama.cpp runs one for each, and no second
HEAD_TENSORS = ("eh_proj", "enorm", "hnorm")
NO_MODELS = ("gemma4-assistant", "clip")  # files that go with a model and are none


def kind_of(target: Path, drafter: Path) -> Kind:
    """Return the kind of a drafter's file for this target."""
    if drafter.suffix == ".safetensors":
        return "dflash"
    header = read_header(drafter)
    if header.architecture == "dflash":
        return "dflash"
    if header.architecture == "eagle3":
        return "eagle3"
    return "mtp" if drafter == target and has_head(header) else "draft-model"


def kind_of_file(drafter: Path) -> Literal["dflash", "dflash2", "dspark", "eagle3", "draft-model"]:
    """Return what a file is as a drafter by itself, of the DFlash family which one."""
    if drafter.suffix == ".safetensors" or (architecture := read_header(drafter).architecture) == "dflash":
        return config_of_file(drafter).kind
    return "eagle3" if architecture == "eagle3" else "draft-model"


def drafter_of(target: Path, given: Path | None) -> Path | None:
    """Return the drafter's file: the one that is given, else the target's own if that is one."""
    return given or (target if has_head(read_header(target)) else None)


def has_head(header: GGUFHeader) -> bool:
    """Return whether a model's file holds a head for the token after the next that can be run."""
    if header.architecture not in WITH_HEADS or blocks_ahead(header) != 1:
        return False
    names = (f"blk.{block_count(header) - 1}.nextn.{name}.weight" for name in HEAD_TENSORS)
    return all(name in header.tensors for name in names)


def block_count(header: GGUFHeader) -> int:
    """Return the blocks of a model, those that predict tokens further ahead included."""
    return header.require(f"{header.architecture}.block_count", int)


def blocks_ahead(header: GGUFHeader) -> int:
    """Return the last of the blocks, which predict tokens further ahead."""
    count = header.metadata.get(f"{header.architecture}.nextn_predict_layers", 0)
    return count if isinstance(count, int) else 0


def check_drafter(target: Path, drafter: Path) -> None:
    """ModelError if the drafter does not belong to this target, naming what does not fit."""
    header, kind = read_header(target), kind_of(target, drafter)
    if kind == "mtp":
        return
    hidden = header.require(f"{header.architecture}.embedding_length", int)
    if kind == "dflash":
        check_fit(config_of_file(drafter), hidden, len(tokens_of(header)), block_count(header), str(drafter))
        return
    theirs = read_header(drafter)
    check_vocabulary(header, theirs)
    if kind == "eagle3":
        check_eagle3(theirs, hidden, len(tokens_of(header)), block_count(header) - blocks_ahead(header))
    elif theirs.architecture in NO_MODELS or block_count(theirs) <= blocks_ahead(theirs):
        raise ModelError(f"{drafter}: is no model by itself, so it cannot draft")


def head_bytes(header: GGUFHeader) -> int:
    """Return the bytes of the blocks that predict tokens further ahead."""
    trunk = block_count(header) - blocks_ahead(header)
    ahead = tuple(f"blk.{block}." for block in range(trunk, block_count(header)))
    return sum(info.nbytes for name, info in header.tensors.items() if name.startswith(ahead))


def tokens_of(header: GGUFHeader) -> list[str]:
    """Return the tokens of a model, by id."""
    return header.require("tokenizer.ggml.tokens", list)


def check_vocabulary(target: GGUFHeader, drafter: GGUFHeader) -> None:
    """ModelError unless they do. One list may be longer: sizes of one family are padded to different lengths."""
    ours, theirs = tokens_of(target), tokens_of(drafter)
    odd = next((token for token, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if odd is not None:
        raise ModelError(
            f"{drafter.path}: another vocabulary than the target's (token {odd} is {theirs[odd]!r}, not {ours[odd]!r});"
            " only a model of the same one can draft"
        )


def check_files(target: Path, drafter: Path | None) -> None:
    """Raise ModelError if a header is broken, or the drafter does not fit this target. Reads headers only."""
    read_header(target)
    if drafter is None:
        return
    if drafter.suffix == ".safetensors":
        safetensors.read_header(drafter)
    check_drafter(target, drafter)
