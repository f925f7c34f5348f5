import errno
import json
import random
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tokenizers import Tokenizer

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.decoder import Decoder
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train import corpus, pair_export
from localdflash.lab.train.corpus import CorpusPackage
from localdflash.lab.train.dataset import SPECIALS, Dataset, build, special_ids, train_tokenizer, write
from localdflash.lab.train.examples import KINDS, Example, ExamplePiece, Special, examples
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.weights.gguf import read_header

SOURCE = (
    '''def add(first, second):
    """Return the sum of two numbers, é and 漢 included."""
    result = first + second
    return result


def stop(text):
    """Return whether the text is `<|endoftext|>` or <|mask|>."""
    return text in ("<|endoftext|>", "<|im_end|>", "<|mask|>")


'''
    * 3
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([SOURCE], 400)


def of(*seeds: int) -> list[Example]:
    return [example for seed in seeds for example in examples(SOURCE, random.Random(seed))]


def text_of(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return ids as text, with special tokens in French quotes."""
    names = {token: name for name, token in special_ids(tokenizer).items()}
    parts: list[str] = []
    run: list[int] = []
    for token in [*ids, -1]:
        if token in names or token == -1:
            parts.append(tokenizer.decode(run))
            parts.append(f"«{names[token]}»" if token in names else "")
            run = []
        else:
            run.append(token)
    return "".join(parts)


def spelled(pieces: tuple[ExamplePiece, ...]) -> str:
    return "".join(f"«{piece.token}»" if isinstance(piece, Special) else piece for piece in pieces)


def test_examples_round_trip_with_their_boundaries(tokenizer: Tokenizer, tmp_path: Path) -> None:
    given = of(0, 1, 2)
    count = write(tmp_path / "train", tokenizer, iter(given))
    data = Dataset.load(tmp_path / "train")
    assert len(data.tokens) == count
    assert len(data.examples) == len(given)
    end = 0
    for row, example in zip(data.examples, given, strict=True):
        assert row["start"] == end
        end += int(row["length"])
        ids = data.tokens[row["start"] : end].tolist()
        assert text_of(tokenizer, ids[: row["prompt"]]) == spelled(example.prompt)
        assert text_of(tokenizer, ids[row["prompt"] :]) == spelled(example.answer)
        assert KINDS[row["kind"]] == example.kind
    assert end == count


@given(text=st.text(max_size=40) | st.lists(st.sampled_from([*SPECIALS, " ", "\n", "a"]), max_size=6).map("".join))
def test_text_is_never_encoded_as_special_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert not set(ids) & set(special_ids(tokenizer).values())
    assert tokenizer.decode(ids) == text


def test_build_writes_both_splits_and_keeps_them_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {"train": [SOURCE, SOURCE], "held_out": [SOURCE.replace("result", "held_back")]}
    fetched = [(CorpusPackage(name, "1", "MIT", "", name == "held_out"), name) for name in sources]
    monkeypatch.setattr(corpus, "fetch", lambda _packages, _folder: fetched)
    monkeypatch.setattr(corpus, "python_files", lambda name: iter(sources[name]))
    lines_reported: list[str] = []
    build(tmp_path / "corpus", tmp_path / "wheels", 600, 0, lines_reported.append)
    tokenizer = Tokenizer.from_file(str(tmp_path / "corpus" / "tokenizer.json"))
    texts = {}
    for name in ("train", "held_out"):
        data = Dataset.load(tmp_path / "corpus" / name)
        texts[name] = text_of(tokenizer, data.tokens.tolist())
    assert "held_back" in texts["held_out"]
    assert "held_back" not in texts["train"]
    assert len(lines_reported) == 2
    assert lines_reported[0].startswith("train: 2 files, ")


def fields(path: Path) -> dict[str, object]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("tied", [True, False])
def test_an_exported_target_round_trips(tied: bool, tiny_pair: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_pair / "tokenizer.json"))
    shape = DecoderConfig(
        tokenizer.get_vocab_size() + len(SPECIALS), 64, 2, 2, 1, 32, 96, rope_theta=5e4, tie_word_embeddings=tied
    )
    torch.manual_seed(0)
    model = Decoder(shape)
    path = tmp_path / "new folder" / "target.gguf"
    path.parent.mkdir()
    pair_export.write_target(path, model, tokenizer, "a name")
    back = load_decoder(path)
    assert back.config.tie_word_embeddings == tied
    assert back.config.rope_theta == 5e4
    for name, weight in model.state_dict().items():
        assert (back.state_dict()[name] - weight).abs().max() <= weight.abs().max() / 2**7, name
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(path).tensors}
    assert set(types.values()) == {"Q8_0", "F32"}
    assert all(kind == "F32" for name, kind in types.items() if "norm" in name)
    assert fields(path)["general.name"] == "a name"


@pytest.mark.parametrize("name", ["drafter.gguf", "drafter.safetensors"])
def test_a_full_disk_keeps_the_old_drafter(
    name: str, tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    drafter, header = dflash_files.load(tiny_pair / "drafter.gguf"), read_header(tiny_pair / "target.gguf")
    (tmp_path / name).write_bytes(b"the old drafter")
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", fails)
    monkeypatch.setattr(Path, "write_bytes", fails)
    write: Callable[[Path], None] = {
        "drafter.gguf": lambda path: pair_export.write_drafter_for(path, drafter, header, "Q8_0", "a name"),
        "drafter.safetensors": lambda path: pair_export.write_drafter_safetensors(path, drafter, 6),
    }[name]
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / name)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"the old drafter"]


def test_safetensors_are_bfloat16_with_the_published_fields(tiny_pair: Path) -> None:
    tensors = load_file(tiny_pair / "drafter.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    config = json.loads((tiny_pair / "config.json").read_text())
    assert config["architectures"] == ["DFlashDraftModel"]
    assert (config["block_size"], config["num_target_layers"], config["num_hidden_layers"]) == (8, 6, 2)
    assert config["dflash_config"]["target_layer_ids"] == [1, 3, 4]
    assert np.prod(tensors["fc.weight"].shape) == 3 * config["hidden_size"] ** 2
