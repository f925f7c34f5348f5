"""Limits of a model's metadata, outside of which C code aborts, loops or allocates without bound."""

import math
from collections.abc import Mapping, Sequence

from localdflash.models.weights.gguf_reader import GGUFReader

TOKENS = "tokenizer.ggml.tokens"
MOST_LAYERS, MOST_EXPERTS = 512, 1024  # of llama.cpp's arrays
LONGEST_CONTEXT = 1 << 24  # tokens; the longest in use is 10 million
LARGEST_SIZE = 1 << 20
LIMITS: Mapping[str, tuple[int, int]] = {  # by the part of a key behind the architecture
    "block_count": (1, MOST_LAYERS),
    "context_length": (1, LONGEST_CONTEXT),
    "rope.scaling.original_context_length": (0, LONGEST_CONTEXT),
    "embedding_length": (1, LARGEST_SIZE),
    "expert_count": (0, MOST_EXPERTS),
    "vocab_size": (1, 1 << 22),
}
SIZES = ("_count", "_count_kv", "_length", "_size", "_rank", "_layers", "_kernel")  # ends of the keys of other sizes
EPSILONS = ("epsilon", "_eps")
SCALINGS = ("none", "linear", "yarn", "longrope")
PARTS_OF = {"expert_used_count": "expert_count", "nextn_predict_layers": "block_count"}  # first <= second


def check_limits(reader: GGUFReader, metadata: Mapping[str, object]) -> None:
    """Raise ModelError for a value outside of its limits, and for a vocabulary with two equal tokens."""
    _check_tokens(reader, metadata.get(TOKENS))
    if not isinstance(architecture := metadata.get("general.architecture"), str):
        return
    prefix = f"{architecture}."
    named = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    for name, value in named.items():
        if wrong := _wrong(name, value if isinstance(value, list) else [value]):
            raise reader.broken(f"{architecture}.{name} is {wrong}")
    for name, whole in PARTS_OF.items():
        if (part := _most(named.get(name))) > (most := _most(named.get(whole))):
            if whole not in named:
                raise reader.broken(f"{architecture}.{whole} is missing, but {name} is {part}")
            raise reader.broken(f"{architecture}.{name} is {part}, but {whole} is {most}")


def _check_tokens(reader: GGUFReader, tokens: object) -> None:
    """Compare tokens as C does: strings end at a NUL, and an empty token gets a name."""
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return
    spelled = [token.partition("\0")[0] or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(spelled)) == len(spelled):
        return
    seen = dict[str, int]()
    index, first = next((i, seen[text]) for i, text in enumerate(spelled) if seen.setdefault(text, i) != i)
    raise reader.broken(f"tokens {first} and {index} of the vocabulary are both {spelled[index][:40]!a}")


def _wrong(name: str, values: Sequence[object]) -> str:
    """Return the first invalid value of a key with the expected ones, or ""."""
    if name == "rope.scaling.type" and values[:1] and values[0] not in SCALINGS:
        return f"{str(values[0])[:40]!a}, none of {', '.join(SCALINGS)}"
    low, high = LIMITS.get(name, (0, LARGEST_SIZE) if name.endswith(SIZES) else (-math.inf, math.inf))
    if name.endswith(EPSILONS):
        low = 0
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            return f"{value}, not a finite number"
        if not low <= value <= high:
            return f"{value}, expected {low} to {high}" if math.isfinite(high) else f"{value}, expected {low} or more"
    return ""


def _most(values: object) -> float:
    """Return the largest number of a key; 0 without one."""
    numbers = values if isinstance(values, list) else [values]
    return max((number for number in numbers if isinstance(number, int | float)), default=0)
