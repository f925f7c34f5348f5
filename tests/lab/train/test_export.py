"""Contents of the written files, read by the reference reader."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train import pair_export
from localdflash.lab.train.dataset import SPECIALS
from localdflash.models.shapes.decoder_config import DecoderConfig


def fields(path: Path) -> dict[str, object]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize(("quantization", "tied"), [("Q8_0", True), ("Q4_0", False)])
def test_a_target_comes_back(quantization: str, tied: bool, tiny_pair: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_pair / "tokenizer.json"))
    shape = DecoderConfig(
        tokenizer.get_vocab_size() + len(SPECIALS), 64, 2, 2, 1, 32, 96, rope_theta=5e4, tie_word_embeddings=tied
    )
    torch.manual_seed(0)
    model = Decoder(shape)
    path = tmp_path / "new folder" / "target.gguf"
    path.parent.mkdir()
    pair_export.write_target(path, model, tokenizer, quantization, "a name")
    back = load_decoder(path)
    assert back.config.tie_word_embeddings == tied
    assert back.config.rope_theta == 5e4
    bits = {"Q8_0": 7, "Q4_0": 3}[quantization]
    for name, weight in model.state_dict().items():
        assert (back.state_dict()[name] - weight).abs().max() <= weight.abs().max() / 2**bits, name
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert set(types.values()) == {quantization, "F32"}
    assert all(kind == "F32" for name, kind in types.items() if "norm" in name)
    assert fields(path)["general.name"] == "a name"


def test_safetensors_are_bfloat16_with_the_published_fields(tiny_pair: Path) -> None:
    tensors = load_file(tiny_pair / "drafter.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((tiny_pair / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert (config["block_size"], config["num_target_layers"], config["num_hidden_layers"]) == (8, 6, 2)
    assert config["dflash_config"]["target_layer_ids"] == [1, 3, 4]
    assert np.prod(tensors["fc.weight"].shape) == 3 * config["hidden_size"] ** 2
