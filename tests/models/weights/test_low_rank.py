"""Merging base and adapter into a file: the weights of their sum, reproducible bytes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError
from localdflash.lab.train import adapter_export
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_export import MARKERS, TRAINED, notes_for, write_adapter
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.low_rank import NOTES, merge, sha256_of, write_vocabulary
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.lab.train.test_adapter import noisy
from tests.support.converted_models import case_of
from tests.support.smollm2 import FILE, needs_smollm2


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Write a Llama with a tied head, q and k permuted as in llama.cpp."""
    return case_of("llama 3.1").write(tmp_path / "base.gguf")


@pytest.fixture
def adapter(base: Path) -> Adapter:
    torch.manual_seed(0)
    adapter = Adapter(load_decoder(base), 2, TRAINED, torch.float32)
    noisy(p for _, p in adapter.parameters())
    with torch.no_grad():
        for _, parameter in adapter.parameters():
            parameter.copy_(parameter.bfloat16())
    adapter.merge()
    return adapter


@pytest.fixture
def written(base: Path, adapter: Adapter, tmp_path: Path) -> Path:
    write_adapter(tmp_path / "adapter.safetensors", adapter, base)
    return tmp_path / "adapter.safetensors"


@pytest.mark.parametrize(("quantization", "step"), [("Q8_0", 1 / 127), ("Q4_1", 1 / 15)])
def test_the_merged_file_has_the_weights_of_the_sum(
    base: Path, adapter: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str, step: float
) -> None:
    monkeypatch.setattr(adapter_export, "QUANTIZATION", quantization)
    write_adapter(tmp_path / "adapter.safetensors", adapter, base)
    merge(base, tmp_path / "adapter.safetensors", tmp_path / "merged.gguf")
    found = load_decoder(tmp_path / "merged.gguf").state_dict()
    for name, linear in adapter.linears.items():
        expected = linear.merged()
        assert (found[f"{name}.weight"] - expected).abs().max() <= step * expected.abs().max(), name
    assert torch.equal(found["embed_tokens.weight"], adapter.embedding.merged())  # float32 in the base
    before, after = read_header(base), read_header(tmp_path / "merged.gguf")
    assert list(before.tensors) == list(after.tensors)
    assert {info.ggml_type.name for name, info in after.tensors.items() if "attn_q." in name} == {quantization}
    assert after.metadata == before.metadata  # no name and no vocabulary


def test_the_bytes_are_the_same_each_time(base: Path, written: Path, tmp_path: Path) -> None:
    for name in ("one.gguf", "two.gguf"):
        merge(base, written, tmp_path / name)
    assert sha256_of(tmp_path / "one.gguf") == sha256_of(tmp_path / "two.gguf")
    reader = gguf.GGUFReader(tmp_path / "one.gguf")  # another reader reads the file
    assert np.isfinite(gguf.dequantize(reader.tensors[-1].data, reader.tensors[-1].tensor_type)).all()


def test_an_adapter_of_another_base_is_refused(written: Path, tmp_path: Path) -> None:
    other = case_of("llama").write(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match=r"adapter\.safetensors: made for another base than .*other\.gguf"):
        merge(other, written, tmp_path / "merged.gguf")
    assert not (tmp_path / "merged.gguf").exists()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.unlink(),
        lambda path: save_file(load_file(path), path),
        lambda path: save_file(load_file(path), path, {NOTES: json.dumps({"rows": [1]})}),
    ],
)
def test_a_damaged_adapter_is_one_line(
    base: Path, written: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    spoil(written)
    with pytest.raises(ModelError, match=r"adapter\.safetensors: not an adapter, or damaged \(\w+\)"):
        merge(base, written, tmp_path / "merged.gguf")


@needs_smollm2
def test_real_vocabulary_gets_markers_and_is_otherwise_unchanged(tmp_path: Path) -> None:
    write_vocabulary(FILE, replace(notes_for(FILE), quantization="Q4_1"), tmp_path / "vocabulary.gguf")
    before, after = Tokenizer.load(FILE), Tokenizer.load(tmp_path / "vocabulary.gguf")
    assert detect(after).name == "localdflash-code"
    assert {after.special(marker): marker for marker in MARKERS.values()} == MARKERS
    text = "def añadir(x):\n\treturn  x + 1  # <fim_middle> is no marker here\n"
    assert before.encode(text) == after.encode(text)
    assert before.ends == after.ends
    assert after.markers == before.markers
    assert after.chat_template() == before.chat_template()
    header, copy = read_header(FILE), read_header(tmp_path / "vocabulary.gguf")
    changed = {name for name, value in header.metadata.items() if copy.metadata[name] != value}
    assert changed == {"general.name", "tokenizer.ggml.tokens"}
    assert not copy.tensors
