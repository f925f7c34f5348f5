"""Options of our own engines where another backend runs the pair: one line says so, and the text is the same."""

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
    ("backend", "kv", "whose"),
    [
        ("cpu", "fp8", "the CUDA engine"),
        ("llama.cpp", "fp8", "the CUDA engine"),
        ("torch", "int8", "our own engines"),
    ],
)
def test_keys_and_values_that_a_backend_does_not_keep(backend: Runner, kv: str, whose: str, tiny_pair: Path) -> None:
    notice, usual = loaded_with(tiny_pair, backend)
    assert "--kv" not in notice
    said, tokens = loaded_with(tiny_pair, backend, kv=kv)
    assert said.endswith(f"--kv {kv}: for {whose}; {backend} runs the pair without")
    assert tokens == usual


@pytest.mark.usefixtures("cpu_engine")
def test_keys_and_values_in_8_bits_are_nothing_to_tell_of_on_our_engine(tiny_pair: Path) -> None:
    assert "--kv" not in loaded_with(tiny_pair, "cpu", kv="int8")[0]


def test_layers_for_a_gpu_that_is_not_there(tiny_pair: Path) -> None:
    said, _ = loaded_with(tiny_pair, "torch", gpu_layers=7)
    assert said == "--gpu-layers 7: torch runs the pair without a GPU"


def test_all_of_them_are_one_line(tiny_pair: Path) -> None:
    said, _ = loaded_with(tiny_pair, "llama.cpp", kv="fp8", drafter_bits=4, native_fp4=True)
    assert said == (
        "--drafter-bits 4: for our own engines; llama.cpp runs the pair without;"
        " --kv fp8, --native-fp4: for the CUDA engine; llama.cpp runs the pair without"
    )
