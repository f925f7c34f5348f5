"""Whether two models mean the same tokens by their ids."""

from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import GGUFHeader


def tokens_of(header: GGUFHeader) -> list[str]:
    """The tokens of a model, by id."""
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
