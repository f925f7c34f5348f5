"""`localdflash train adapter`: from a few files to an adapter, and refused input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from filelock import FileLock
from safetensors import safe_open

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train import adapter_corpus, adapter_stages
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.lab.train.test_corpus import SOURCE
from tests.support.gguf_writing import add_metadata, add_vocabulary, finish, shape_numbers
from tests.support.smollm2 import FILE, needs_smollm2
from tests.support.wheels import make_wheel

Fails = Callable[..., str]
SHAPE = DecoderConfig(49_152, 32, 2, 2, 1, 16, 64, rms_norm_eps=1e-5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of two random layers with SmolLM2's vocabulary."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    for name, value in (shape_numbers(SHAPE, 512, 1e5) | {"vocab_size": SHAPE.vocab_size}).items():
        add_metadata(writer, f"llama.{name}", value)
    add_vocabulary(writer, FILE)
    rng = np.random.default_rng(0)
    sizes: dict[str, tuple[int, ...]] = {"token_embd": (49_152, 32), "output_norm": (32,)}
    for block in range(2):
        rows_of = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 64, "ffn_up": 64}
        sizes |= {f"blk.{block}.{name}": (rows, 32) for name, rows in rows_of.items()}
        sizes |= {f"blk.{block}.ffn_down": (32, 64), f"blk.{block}.attn_norm": (32,), f"blk.{block}.ffn_norm": (32,)}
    for name, size in sizes.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(size, np.float32) * 0.1)
    finish(writer)
    return path


@pytest.mark.nightly
@needs_smollm2
def test_from_packages_to_an_adapter(
    tiny: Path, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = [make_wheel(tmp_path, {"one/a.py": SOURCE, "one/b.py": SOURCE}, name) for name in ("one", "two")]
    packages = [adapter_corpus.Archive(path, path is wheels[1]) for path in wheels]
    monkeypatch.setattr(adapter_corpus, "fetch_archives", lambda _: packages)
    monkeypatch.setattr(adapter_stages, "HELD_OUT_EXAMPLES", 4)
    given = ("train", "adapter", tmp_path / "new", "--pair", tiny, "--rank", "2", "--threads", "1", "--tokens")
    assert run(*given, "1500").code == 0
    with safe_open(tmp_path / "new" / "adapter.safetensors", "pt") as file:
        assert file.get_tensor("blk.1.ffn_down.weight.up").shape == (32, 2)
        assert json.loads(file.metadata()["localdflash"])["rows"] == [3, 5, 14, 15, 16]
    monkeypatch.setattr(adapter_stages, "merge", lambda *_: None)
    again = run(*given, "3000")
    assert again.code == 0
    assert "tokens of examples" not in again.err
    assert "step 0" not in again.err
    assert (tmp_path / "new" / "training" / "training.png").is_file()
    tokenizer = Tokenizer.load(tmp_path / "new" / "target.gguf")
    assert detect(tokenizer).name == "localdflash-code"
    assert load_decoder(tmp_path / "new" / "target.gguf").config.num_hidden_layers == 2
    with FileLock(tmp_path / "new" / "lock"):
        assert "another process is training here" in run(*given, "6000").err


def test_other_models_are_refused_before_anything_is_downloaded(fails: Fails, tiny_pair: Path, tmp_path: Path) -> None:
    line = fails(1, "train", "adapter", tmp_path / "new", "--pair", tiny_pair / "target.gguf")
    assert "target.gguf: not SmolLM2" in line
    assert not (tmp_path / "new").exists()
