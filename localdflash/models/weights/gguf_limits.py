"""Checks limits of a model's metadata, outside of which C code aborts, loops or allocates without bound."""

import math
from collections.abc import Mapping, Sequence

from localdflash.models.weights.gguf_reader import GGUFReader

TOKENS = "tokenizer.ggml.tokens"
MAX_LAYERS, MAX_EXPERTS = 512, 1024  # sizes of llama.cpp's arrays
MAX_CONTEXT = 1 << 24  # tokens; the longest in use is 10 million
MAX_SIZE = 1 << 20
LIMITS: Mapping[str, tuple[float, float]] = {  # by key without the architecture
    "block_count": (1, MAX_LAYERS),
    "context_length": (1, MAX_CONTEXT),
    "rope.scaling.original_context_length": (0, MAX_CONTEXT),
    "embedding_length": (1, MAX_SIZE),
    "expert_count": (0, MAX_EXPERTS),
    "vocab_size": (1, 1 << 22),
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa"), (1, math.inf)),  # a tiny base makes frequencies infinite
}
SIZES = ("_count", "_count_kv", "_length", "_size", "_rank", "_layers", "_kernel")  # suffixes of other keys of sizes
EPSILONS = ("epsilon", "_eps")
SCALINGS = ("none", "linear", "yarn", "longrope")
UPPER_BOUNDS = {"expert_used_count": "expert_count", "nextn_predict_layers": "block_count"}  # first <= second


def check_limits(reader: GGUFReader, metadata: Mapping[str, object]) -> None:
    """Raise ModelError for a value outside its limits, and for a vocabulary with duplicate tokens."""
    _check_tokens(reader, metadata.get(TOKENS))
    if not isinstance(architecture := metadata.get("general.architecture"), str):
        return
    prefix = f"{architecture}."
    fields = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    for name, value in fields.items():
        if problem := _find_invalid(name, value if isinstance(value, list) else [value]):
            raise reader.broken(f"{architecture}.{name} is {problem}")
    for name, bound in UPPER_BOUNDS.items():
        if (size := _largest(fields.get(name))) > (largest := _largest(fields.get(bound))):
            if bound not in fields:
                raise reader.broken(f"{architecture}.{bound} is missing, but {name} is {size}")
            raise reader.broken(f"{architecture}.{name} is {size}, but {bound} is {largest}")


def _check_tokens(reader: GGUFReader, tokens: object) -> None:
    """Raise ModelError for duplicate tokens, compared as in C: strings end at a NUL, empty tokens get a name."""
    if not isinstance(tokens, list) or not {*map(type, tokens)} <= {str}:
        return
    spellings = [token.partition("\0")[0] or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    if len(set(spellings)) == len(spellings):
        return
    firsts = dict[str, int]()
    index, first = next((i, firsts[text]) for i, text in enumerate(spellings) if firsts.setdefault(text, i) != i)
    raise reader.broken(f"tokens {first} and {index} of the vocabulary are both {spellings[index][:40]!a}")


def _find_invalid(name: str, values: Sequence[object]) -> str:
    """Return the first invalid value of a key, with the expected range; "" if all values are valid."""
    if name == "rope.scaling.type" and values[:1] and values[0] not in SCALINGS:
        return f"{str(values[0])[:40]!a}, none of {', '.join(SCALINGS)}"
    low, high = LIMITS.get(name, (0, MAX_SIZE) if name.endswith(SIZES) else (-math.inf, math.inf))
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


def _largest(values: object) -> float:
    """Return the largest number of a key; 0 without one."""
    numbers = values if isinstance(values, list) else [values]
    return max((number for number in numbers if isinstance(number, int | float)), default=0)
