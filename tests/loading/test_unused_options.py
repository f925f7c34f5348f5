"""Options that the backend of a pair does not have: a notice says so, and the text is the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Runner
from localdflash.models.load_options import Options


def loaded_with(tiny_pair: Path, backend: Runner, **options: Any) -> tuple[str, list[int]]:
    """The notice, and a greedy answer."""
    wanted = replace(Options(str(tiny_pair / "target.gguf"), backend, threads=1, context=64), **options)
    with LoadedPair(wanted) as loaded:
        return loaded.notice, [token for step in generate(loaded.pair, Request([5, 6, 7], 12)) for token in step.tokens]


@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize(
    ("backend", "options", "named"),
    [
        ("cpu", {"kv": "fp8"}, "--kv fp8"),
        ("torch", {"gpu_layers": 7}, "--gpu-layers 7"),
        ("llama.cpp", {"kv": "fp8", "drafter_bits": 4, "native_fp4": True}, "--drafter-bits 4 --kv fp8, --native-fp4"),
    ],
)
def test_options_that_a_backend_does_not_have(
    backend: Runner, options: dict[str, Any], named: str, tiny_pair: Path
) -> None:
    notice, usual = loaded_with(tiny_pair, backend)
    assert "--" not in notice
    said, tokens = loaded_with(tiny_pair, backend, **options)
    assert all(option in said for option in named.split(" --"))
    assert ("--" in said) == bool(named)
    assert "\n" not in said
    assert tokens == usual or not named
