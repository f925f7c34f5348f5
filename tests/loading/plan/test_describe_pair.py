"""Facts about a pair that are read from its files."""

from pathlib import Path

import pytest

from localdflash.loading.plan.describe_pair import describe_pair
from localdflash.models.registry.registry import load_registry
from tests.support.tiny_models import SHAPE, write_target


@pytest.mark.usefixtures("cpu_engine")
def test_files_at_a_path_are_described_by_their_headers(tiny_pair: Path) -> None:
    pair = describe_pair(load_registry().resolve(str(tiny_pair / "target.gguf")))
    assert (pair.architecture, pair.layers, pair.context) == ("qwen3", 6, 1024)
    assert pair.target.quantization == "Q8_0"
    assert pair.backends == ("llama.cpp", "cpu", "torch", "cuda")
    assert pair.drafter
    assert (pair.drafter.block_size, pair.drafter.taps) == (8, (1, 3, 4))


def test_what_our_engines_cannot_run_is_llama_cpps(tmp_path: Path) -> None:
    file = write_target(tmp_path / "target.gguf", SHAPE)
    file.write_bytes(file.read_bytes().replace(b"qwen3", b"gemma"))
    pair = describe_pair(load_registry().resolve(str(file)))
    assert (pair.architecture, pair.layers, pair.backends) == ("gemma", SHAPE.num_hidden_layers, ("llama.cpp",))


@pytest.mark.parametrize("content", [b"GGUF", b"no model"])
def test_an_unreadable_file_adds_nothing_to_the_entry(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "target.gguf"
    file.write_bytes(content)
    pair = load_registry().resolve(str(file))
    assert describe_pair(pair) == pair
