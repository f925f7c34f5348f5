"""Base and adapter in one file: the weights of their sum, the same bytes each time."""

import hashlib
from pathlib import Path

import pytest
import torch

from localdflash.errors import ModelError
from localdflash.reference.decoder import causal
from localdflash.reference.gguf_decoder import load_decoder
from localdflash.text.fim import detect
from localdflash.text.tokenizer import Tokenizer
from localdflash.train.adapter import Adapter
from localdflash.train.adapter_export import MARKERS, TRAINED, write_adapter, write_vocabulary
from localdflash.train.adapter_merge import merge
from localdflash.weights.gguf import read_header
from tests.support.adapters import noisy
from tests.support.converted_models import case_of
from tests.support.smollm2 import FILE, needs_smollm2


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A Llama with a tied head, whose q and k are turned as llama.cpp wants them."""
    return case_of("llama 3.1").write(tmp_path / "base.gguf")


@pytest.fixture
def adapter(base: Path) -> Adapter:
    torch.manual_seed(0)
    adapter = Adapter(load_decoder(base), 2, TRAINED, torch.float32)
    with torch.no_grad():
        noisy(p for _, p in adapter.parameters())
        for _, parameter in adapter.parameters():
            parameter.copy_(parameter.bfloat16())
    adapter.merge()
    return adapter


@pytest.mark.parametrize(("quantization", "step"), [("Q8_0", 1 / 127), ("Q4_1", 1 / 15)])
def test_the_merged_file_has_the_weights_of_the_sum(
    base: Path, adapter: Adapter, tmp_path: Path, quantization: str, step: float
) -> None:
    write_adapter(tmp_path / "adapter.safetensors", adapter, sha256(base))
    merge(base, tmp_path / "adapter.safetensors", tmp_path / "merged.gguf", quantization)
    found = load_decoder(tmp_path / "merged.gguf").state_dict()
    for name, linear in adapter.linears.items():
        expected = linear.merged()
        assert (found[f"{name}.weight"] - expected).abs().max() <= step * expected.abs().max(), name
    assert torch.equal(found["embed_tokens.weight"], adapter.embedding.merged())  # float32 in the base
    header = read_header(tmp_path / "merged.gguf")
    assert {info.ggml_type.name for name, info in header.tensors.items() if "attn_q." in name} == {quantization}


def test_the_merged_model_computes_what_the_adapted_one_does(base: Path, adapter: Adapter, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter.safetensors", adapter, sha256(base))
    merge(base, tmp_path / "adapter.safetensors", tmp_path / "merged.gguf", "Q8_0")
    ids, positions = torch.randint(0, 97, (1, 20)), torch.arange(20)
    expected, _ = adapter.model(ids, positions, causal)
    found, _ = load_decoder(tmp_path / "merged.gguf")(ids, positions, causal)
    plain, _ = load_decoder(base)(ids, positions, causal)
    assert (found - expected).abs().mean() < 0.1 * (plain - expected).abs().mean()


def test_the_bytes_are_the_same_each_time(base: Path, adapter: Adapter, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter.safetensors", adapter, sha256(base))
    for name in ("one.gguf", "two.gguf"):
        merge(base, tmp_path / "adapter.safetensors", tmp_path / name, "Q8_0")
    assert sha256(tmp_path / "one.gguf") == sha256(tmp_path / "two.gguf")


def test_an_adapter_of_another_base_is_refused(base: Path, adapter: Adapter, tmp_path: Path) -> None:
    write_adapter(tmp_path / "adapter.safetensors", adapter, "0" * 64)
    with pytest.raises(ModelError, match=r"adapter\.safetensors: trained for another file than .*base\.gguf"):
        merge(base, tmp_path / "adapter.safetensors", tmp_path / "merged.gguf", "Q8_0")
    assert not (tmp_path / "merged.gguf").exists()


@needs_smollm2
def test_the_real_vocabulary_has_the_markers_and_all_else_as_it_was(tmp_path: Path) -> None:
    write_vocabulary(FILE, tmp_path / "vocabulary.gguf")
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
