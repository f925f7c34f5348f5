import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from localdflash.lab.train import corpus
from localdflash.lab.train.corpus import CorpusPackage
from localdflash.lab.train.dataset import SPECIALS, Dataset, build, special_ids, train_tokenizer, write
from localdflash.lab.train.examples import KINDS, Example, ExamplePiece, Special, examples

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
    """Ids as text, special tokens in French quotes."""
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


def test_examples_come_back_with_their_boundaries(tokenizer: Tokenizer, tmp_path: Path) -> None:
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
def test_text_never_gives_special_ids(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert not set(ids) & set(special_ids(tokenizer).values())
    assert tokenizer.decode(ids) == text


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[list[str], list[str]], None]:
    """Makes the corpus consist of these sources to train on and to hold out."""

    def install(train: list[str], held_out: list[str]) -> None:
        sources = {tmp_path / "train.whl": train, tmp_path / "held_out.whl": held_out}
        packages = [CorpusPackage(path.stem, "1", "MIT", "", path.stem == "held_out") for path in sources]
        monkeypatch.setattr(corpus, "fetch", lambda _packages, _folder: list(zip(packages, sources, strict=True)))
        monkeypatch.setattr(corpus, "python_files", lambda path: iter(sources[path]))

    return install


def test_build_writes_both_splits_and_keeps_them_apart(
    fetched: Callable[[list[str], list[str]], None], tmp_path: Path
) -> None:
    secret = SOURCE.replace("result", "held_back")
    fetched([SOURCE, SOURCE], [secret])
    said: list[str] = []
    build(tmp_path / "corpus", tmp_path / "wheels", 600, 0, said.append)
    tokenizer = Tokenizer.from_file(str(tmp_path / "corpus" / "tokenizer.json"))
    texts = {}
    for name in ("train", "held_out"):
        data = Dataset.load(tmp_path / "corpus" / name)
        assert data.tokens.dtype == np.uint32
        texts[name] = text_of(tokenizer, data.tokens.tolist())
    assert "held_back" in texts["held_out"]
    assert "held_back" not in texts["train"]
    assert len(said) == 2
    assert said[0].startswith("train: 2 files, ")
