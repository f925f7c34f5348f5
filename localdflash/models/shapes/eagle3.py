"""What an EAGLE-3 drafter's GGUF must be, by its header: the process ends where llama.cpp's graph finds otherwise.

One block over pairs of a token and a hidden state: that of the target, three taps fused, or the drafter's own of the
token before. Embedding and head are the target's where it brings none; `d2t` holds the tokens that its head's rows
stand for. Format: llama.cpp's `eagle3` architecture.
"""

from array import array

from localdflash.base.errors import ModelError
from localdflash.base.files.regular import open_model
from localdflash.models.weights.gguf import GGUFHeader

TAPS = 3
EMBEDDING, HEAD, TOKENS = "token_embd.weight", "output.weight", "d2t"


def taps_of(header: GGUFHeader) -> tuple[int, ...]:
    """0-based blocks of the target whose output it reads."""
    layers = header.require("eagle3.target_layers", list)  # llama.cpp counts the inputs of layers
    if not all(isinstance(layer, int) for layer in layers):
        raise ModelError(f"{header.path}: eagle3.target_layers are no layers; convert it again")
    return tuple(layer - 1 for layer in layers)


def check_eagle3(header: GGUFHeader, hidden: int, vocabulary: int, blocks: int) -> None:
    """ModelError if it does not fit a target of this hidden size, vocabulary and number of blocks."""
    where, taps = header.path, taps_of(header)
    if (layers := header.require("eagle3.block_count", int)) != 1:
        raise ModelError(f"{where}: an EAGLE-3 drafter of {layers} layers, and llama.cpp runs those of one")
    if (reads := header.require("eagle3.target_hidden_size", int)) != hidden:
        raise ModelError(f"{where}: reads hidden states of {reads}, but the target's are of {hidden}")
    if len(taps) != TAPS or not all(0 <= tap < blocks for tap in taps):
        raise ModelError(f"{where}: taps blocks {taps}, but llama.cpp wants {TAPS} of the target's 0 to {blocks - 1}")
    own_size = header.require("eagle3.embedding_length", int)
    if own_size != hidden and not (EMBEDDING in header.tensors and HEAD in header.tensors):
        raise ModelError(f"{where}: hidden size {own_size}, but the target's, whose tables it needs, is {hidden}")
    _check_tokens(header, vocabulary)


def _check_tokens(header: GGUFHeader, vocabulary: int) -> None:
    info, head = header.tensors.get(TOKENS), header.tensors.get(HEAD)
    if info is None:
        return
    if info.ggml_type.name != "I64" or head is None or head.shape[:1] != info.shape:
        raise ModelError(f"{header.path}: {TOKENS} and {HEAD} do not belong together; convert it again")
    with open_model(header.files[info.part]) as (stream, _):
        stream.seek(info.offset)
        ids = array("q", stream.read(info.nbytes))
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise ModelError(f"{header.path}: {TOKENS} names tokens that the target has not; convert it again")
