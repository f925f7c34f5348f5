"""Sampling parameters that a model's authors recommend in its GGUF metadata, `general.sampling.*`."""

from collections.abc import Mapping
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.engine.sampling_params import SamplingParams

_KEYS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def recommended(metadata: Mapping[str, object]) -> dict[str, float]:
    """Return fields of `SamplingParams` by name, without invalid values."""
    found: dict[str, float] = {}
    for name, key in _KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if not isinstance(value, int | float):
            continue
        checked: dict[str, Any] = {name: max(value, 0) if name == "top_k" else value}  # top_k -1: all, as 0
        try:
            SamplingParams(**checked)
        except UsageError:
            continue
        found |= checked
    return found
