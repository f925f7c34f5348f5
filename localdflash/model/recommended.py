"""How the makers of a model would have its tokens drawn, as its GGUF file says: `general.sampling.*`."""

from collections.abc import Mapping
from dataclasses import replace

from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import UsageError

_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
RECOMMENDED = tuple(_KEYS)  # fields of SamplingParams


def recommended(metadata: Mapping[str, object]) -> dict[str, float]:
    """Fields of `SamplingParams` by name; a value that makes no sense is left out, as one that is not there."""
    found: dict[str, float] = {}
    for name, key in _KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if not isinstance(value, int | float):
            continue
        value = max(value, 0) if name == "top_k" else value  # -1: all, as 0
        try:
            replace(SamplingParams(), **{name: value})
        except UsageError:
            continue
        found[name] = value
    return found
