"""`localdflash train vocabulary`, and the pair that drafts from what it wrote."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.lab.train.dataset import EXAMPLE_DTYPE
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.text.tokenizer import Tokenizer

DRAFTERS = ("drafter.gguf", "drafter.safetensors")
ANSWERS = [([400, 401, 402], [7, 7, 7, 9]), ([403], [9, 300, 7]), ([404, 404], [])]


@pytest.fixture
def folder(tiny_pair: Path, tmp_path: Path) -> Path:
    """Make a folder as `train drafter` leaves it, with these answers."""
    folder = Path(shutil.copytree(tiny_pair, tmp_path / "folder"))
    write_answers(folder / "answers", ANSWERS)
    return folder


def write_answers(folder: Path, examples: Sequence[tuple[list[int], list[int]]]) -> None:
    rows, tokens = [], list[int]()
    for prompt, answer in examples:
        rows.append((len(tokens), len(prompt), len(prompt) + len(answer), 0))
        tokens += [*prompt, *answer]
    folder.mkdir(exist_ok=True)
    np.array(tokens, np.uint32).tofile(folder / "tokens.bin")
    np.save(folder / "examples.npy", np.array(rows, EXAMPLE_DTYPE))


def test_the_tokens_of_the_answers_are_counted(folder: Path, run: Callable[..., Any]) -> None:
    ends = Tokenizer.load(folder / "target.gguf").ends
    assert ends
    done = run("train", "vocabulary", folder, "--size", len(ends) + 2)
    assert (done.code, done.out) == (0, "")
    assert f"{len(ends) + 2} of " in done.err
    assert "tokens cover 85.71% of 7 in the answers" in done.err
    for name in DRAFTERS:
        assert config_of_file(folder / name).short == tuple(sorted({7, 9} | ends))


def test_invalid_sizes_and_answers_are_refused(folder: Path, fails: Callable[..., str], tmp_path: Path) -> None:
    size = load_decoder(folder / "target.gguf").config.vocab_size
    for too_large in (size, 32_768):
        error = fails(2, "train", "vocabulary", folder, "--size", too_large)
        assert error == f"--size {too_large}: expected less than the {size} tokens of the target's vocabulary"
    assert "expected a size from" in fails(2, "train", "vocabulary", folder, "--size", 1)
    assert "expected less" in fails(2, "train", "vocabulary", folder)  # the default is more than this target has
    write_answers(folder / "answers", [([1, 2], [])])
    assert "all answers are empty" in fails(1, "train", "vocabulary", folder, "--size", 100)
    write_answers(folder / "answers", [([1], [size])])
    assert f"token {size}: outside the vocabulary" in fails(3, "train", "vocabulary", folder, "--size", 100)
    for damaged in (b"", b"\0\0"):
        (folder / "answers" / "tokens.bin").write_bytes(damaged)
        assert "answers: cannot be read" in fails(1, "train", "vocabulary", folder, "--size", 100)
    shutil.rmtree(folder / "answers")
    error = fails(1, "train", "vocabulary", folder, "--size", 100)
    assert error.endswith(f"no answers; run `localdflash train drafter {folder}` first")
    error = fails(1, "train", "vocabulary", tmp_path / "empty")
    assert f"run `localdflash train target {tmp_path / 'empty'}` first" in error
    write_answers(folder / "answers", ANSWERS)
    error = fails(3, "train", "vocabulary", folder, "--size", 100, "--drafter", folder / "target.gguf")
    assert "is not a DFlash drafter" in error
    for name in DRAFTERS:
        (folder / name).unlink()
    error = fails(1, "train", "vocabulary", folder, "--size", 100)
    assert error.endswith(f"no drafter; run `localdflash train drafter {folder}` first")
