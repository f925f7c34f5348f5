"""What a GGUF file says of sampling: its keys, and values that make no sense."""

import math

import pytest
from gguf import Keys

from localdflash.models.shapes.recommended import recommended

WRITTEN = {
    Keys.General.SAMPLING_TEMP: 0.6,
    Keys.General.SAMPLING_TOP_K: 20,
    Keys.General.SAMPLING_TOP_P: 0.95,
    Keys.General.SAMPLING_MIN_P: 0.05,
    Keys.General.SAMPLING_PENALTY_REPEAT: 1.05,
    Keys.General.SAMPLING_MIROSTAT: 2,
    "general.name": "x",
}


def test_what_the_file_says() -> None:
    assert recommended(WRITTEN) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.05,
    }
    assert recommended({}) == {}


@pytest.mark.parametrize("value", [-1.0, 11.0, math.nan, "hot", True])
def test_what_makes_no_sense_is_left_out(value: object) -> None:
    assert recommended({**WRITTEN, Keys.General.SAMPLING_TEMP: value}).get("temperature") is None
