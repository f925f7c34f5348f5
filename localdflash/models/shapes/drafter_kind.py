"""Determines the kind of a drafter's file, and whether the drafter fits a target, from their headers.

The kinds are the DFlash family, EAGLE-3, any model with the target's vocabulary, and the multi-token prediction head in
the target's own file.
"""

from pathlib import Path
from typing import Literal

from localdflash.base.errors import ModelError
from localdflash.models.shapes.dflash_config import check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.weights import safetensors
from localdflash.models.weights.gguf import GGUFHeader, load_ids, read_header

Kind = Literal["dflash", "eagle3", "draft-model", "mtp"]

RUNNABLE_HEADS = ("qwen35", "qwen35moe")  # architectures whose head a test ran; llama.cpp runs only one block
HEAD_TENSORS = ("eh_proj", "enorm", "hnorm")
NO_MODELS = ("gemma4-assistant", "clip")  # companion files of a model
DRAFTERS = ("dflash", "eagle3")
EAGLE3_TAPS = 3
EMBEDDING, HEAD, IDS = "token_embd.weight", "output.weight", "d2t"


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
    """Return the kind of a drafter's file without its target."""
    if drafter.suffix == ".safetensors" or (architecture := read_header(drafter).architecture) == "dflash":
        return config_of_file(drafter).kind
    return "eagle3" if architecture == "eagle3" else "draft-model"


def is_companion(header: GGUFHeader) -> bool:
    """Return whether a file is part of another model: a drafter, an adapter, or the encoder of images."""
    kind = header.metadata.get("general.type", "model")
    return kind != "model" or header.architecture in (*NO_MODELS, *DRAFTERS)


def drafter_of(target: Path, drafter: Path | None) -> Path | None:
    """Return the drafter's file if given, else the target's file if it has a multi-token prediction head."""
    return drafter or (target if has_head(read_header(target)) else None)


def has_head(header: GGUFHeader) -> bool:
    """Return whether a model's file has a multi-token prediction head that can be run."""
    if header.architecture not in RUNNABLE_HEADS or blocks_ahead(header) != 1:
        return False
    names = (f"blk.{block_count(header) - 1}.nextn.{name}.weight" for name in HEAD_TENSORS)
    return all(name in header.tensors for name in names)


def block_count(header: GGUFHeader) -> int:
    """Return the number of a model's blocks, multi-token prediction included."""
    return header.require(f"{header.architecture}.block_count", int)


def blocks_ahead(header: GGUFHeader) -> int:
    """Return the number of multi-token prediction blocks, which are the last ones."""
    count = header.metadata.get(f"{header.architecture}.nextn_predict_layers", 0)
    return count if isinstance(count, int) else 0


def check_drafter(target: Path, drafter: Path) -> None:
    """Raise ModelError if the drafter does not fit this target."""
    header, kind = read_header(target), kind_of(target, drafter)
    if kind == "mtp":
        return
    hidden = header.require(f"{header.architecture}.embedding_length", int)
    if kind == "dflash":
        check_fit(config_of_file(drafter), hidden, len(tokens_of(header)), block_count(header), str(drafter))
        return
    drafter_header = read_header(drafter)
    check_vocabulary(header, drafter_header)
    if kind == "eagle3":
        _check_eagle3(drafter_header, hidden, len(tokens_of(header)), block_count(header) - blocks_ahead(header))
    elif drafter_header.architecture in NO_MODELS or block_count(drafter_header) <= blocks_ahead(drafter_header):
        raise ModelError(f"{drafter}: not a complete model; use another drafter")


def eagle3_taps(header: GGUFHeader) -> tuple[int, ...]:
    """Return the 0-based target blocks whose output an EAGLE-3 drafter reads."""
    layers = header.require("eagle3.target_layers", list)  # llama.cpp counts the inputs of layers
    if not all(isinstance(layer, int) for layer in layers):
        raise ModelError(f"{header.path}: eagle3.target_layers: expected layer numbers; convert it again")
    return tuple(layer - 1 for layer in layers)


def _check_eagle3(header: GGUFHeader, hidden: int, vocabulary: int, blocks: int) -> None:
    """Raise ModelError if an EAGLE-3 drafter does not fit a target of this shape; llama.cpp would end the process."""
    where, taps = header.path, eagle3_taps(header)
    if (layers := header.require("eagle3.block_count", int)) != 1:
        raise ModelError(f"{where}: an EAGLE-3 drafter of {layers} layers (llama.cpp runs one); use another drafter")
    if (read_size := header.require("eagle3.target_hidden_size", int)) != hidden:
        raise ModelError(
            f"{where}: reads hidden states of size {read_size}, but the target's is {hidden}; use another drafter"
        )
    if len(taps) != EAGLE3_TAPS or not all(0 <= tap < blocks for tap in taps):
        raise ModelError(
            f"{where}: reads blocks {taps} (expected {EAGLE3_TAPS} of 0 to {blocks - 1}); use another drafter"
        )
    own_size = header.require("eagle3.embedding_length", int)
    if own_size != hidden and not (EMBEDDING in header.tensors and HEAD in header.tensors):
        raise ModelError(
            f"{where}: hidden size {own_size}, but the target's embedding has {hidden}; use another drafter"
        )
    if IDS not in header.tensors:
        return
    ids, head = load_ids(header, IDS), header.tensors.get(HEAD)
    if head is None or head.shape[:1] != (len(ids),):
        raise ModelError(f"{where}: {IDS} and {HEAD} do not belong together; convert it again")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise ModelError(f"{where}: {IDS} contains ids outside the target's vocabulary; convert it again")


def head_bytes(header: GGUFHeader) -> int:
    """Return the bytes of the multi-token prediction blocks."""
    trunk = block_count(header) - blocks_ahead(header)
    ahead = tuple(f"blk.{block}." for block in range(trunk, block_count(header)))
    return sum(info.nbytes for name, info in header.tensors.items() if name.startswith(ahead))


def tokens_of(header: GGUFHeader) -> list[str]:
    """Return the tokens of a model, by id."""
    return header.require("tokenizer.ggml.tokens", list)


def check_vocabulary(target: GGUFHeader, drafter: GGUFHeader) -> None:
    """Raise ModelError for different tokens; one list may be longer, because padding differs within a family."""
    target_tokens, drafter_tokens = tokens_of(target), tokens_of(drafter)
    pairs = enumerate(zip(target_tokens, drafter_tokens, strict=False))
    differing = next((token for token, (ours, theirs) in pairs if ours != theirs), None)
    if differing is not None:
        raise ModelError(
            f"{drafter.path}: another vocabulary than the target's (token {differing} is {drafter_tokens[differing]!r},"
            f" expected {target_tokens[differing]!r}); use a drafter with the same vocabulary"
        )


def check_files(target: Path, drafter: Path | None) -> None:
    """Raise ModelError if a header is broken, or the drafter does not fit this target. Reads headers only."""
    read_header(target)
    if drafter is None:
        return
    if drafter.suffix == ".safetensors":
        safetensors.read_header(drafter)
    check_drafter(target, drafter)
