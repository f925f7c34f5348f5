"""The KV cache's type: the requested one, else the pair's."""

import pytest

from localdflash.backends.cpu.cpu_kv_cache import choose_kv_format
from localdflash.models.registry.registry import load_registry


@pytest.mark.parametrize(
    ("requested", "of_pair", "chosen"),
    [
        ("auto", "int8", "int8"),
        ("auto", None, "f16"),
        ("f16", "int8", "f16"),
        ("int8", None, "int8"),
        ("fp8", "int8", "f16"),  # only the CUDA engine has fp8
    ],
)
def test_a_request_overrides_the_pair(requested: str, of_pair: str | None, chosen: str) -> None:
    assert choose_kv_format(requested, of_pair) == chosen


def test_the_chat_pair_has_eight_bits_and_its_completion_pair_which_nobody_measured_has_not() -> None:
    assert load_registry().pair("smollm2-135m").kv == "int8"
    assert load_registry().pair("smollm2-135m-code").kv is None
