"""`localdflash train`: seconds of training, from a corpus of a few files to a pair that runs."""

import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from localdflash.cli import main
from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.lab.bench import prompt_set
from localdflash.lab.train import loop
from localdflash.lab.train.dataset import train_tokenizer, write
from localdflash.lab.train.examples import examples
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

SHAPE = ("--hidden", "64", "--layers", "6", "--mlp", "64", "--batch-tokens", "2048", "--threads", "1")
SECONDS = ("--minutes", "0.02", "--device", "cpu")


@pytest.fixture(scope="module", autouse=True)
def _uncompiled() -> Iterator[None]:
    """Train without compiling, which takes longer than these trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda function, **_options: function)
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a folder as `train corpus` leaves it, of a few modules."""
    folder = tmp_path_factory.mktemp("training")
    modules = sorted((Path(prompt_set.__file__).parent / "prompts").glob("*.py"))
    sources = [path.read_text() for path in modules[:8]]
    tokenizer = train_tokenizer(sources, 600)
    (folder / "corpus").mkdir()
    tokenizer.save(str(folder / "corpus" / "tokenizer.json"))
    for name, part in (("train", sources[:3]), ("held_out", sources[3:4])):
        write(folder / "corpus" / name, tokenizer, (e for text in part for e in examples(text, random.Random(text))))
    return folder


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a target and a drafter; return their folder."""
    folder = tmp_path_factory.mktemp("trained") / "folder"
    shutil.copytree(corpus, folder)
    assert main(["train", "target", str(folder), *SECONDS, *SHAPE]) == 0
    drafter = ("--tokens", "1000", "--layers", "1", "--batch-tokens", "1024", "--threads", "1")
    assert main(["train", "drafter", str(folder), *SECONDS, *drafter]) == 0
    return folder


@pytest.fixture
def folder(corpus: Path, tmp_path: Path) -> Path:
    """Copy the corpus for one test."""
    return Path(shutil.copytree(corpus, tmp_path / "folder"))


@pytest.mark.nightly
def test_the_trained_pair_gives_the_same_text_with_drafts(trained: Path) -> None:
    options: dict[str, Any] = {"pair": str(trained / "target.gguf"), "backend": "torch", "threads": 1}
    tokenizer = Tokenizer.from_file(str(trained / "corpus" / "tokenizer.json"))
    ids = tokenizer.encode("def add(first, second):\n    ").ids
    found = {}
    for draft in (True, False):
        with LoadedPair(Options(**options, draft=draft)) as loaded:
            assert isinstance(loaded.pair, HostPair)
            assert ("dflash" in [d.name for d in loaded.pair.drafters]) == draft
            found[draft] = [token for step in generate(loaded.pair, Request(ids, 40)) for token in step.tokens]
    assert found[True] == found[False]
    assert len(found[True]) == 40


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_keeps_a_checkpoint_from_which_the_next_run_continues(
    folder: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    show = loop.TrainingRun._show
    monkeypatch.setattr(loop, "LOG_STEPS", 1)

    def stop_at_the_third(self: loop.TrainingRun, *arguments: Any) -> None:
        show(self, *arguments)
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(loop.TrainingRun, "_show", stop_at_the_third)
        stopped = run("train", "target", folder, "--minutes", "60", "--device", "cpu", *SHAPE)
    assert (stopped.code, stopped.out) == (130, "")
    assert "internal error" not in stopped.err
    state = torch.load(folder / "target" / "last.pt", weights_only=True)
    assert state["step"] == 3
    assert not (folder / "target.gguf").exists()
    minutes = str((state["spent"] + 0.5) / 60)
    done = run("train", "target", folder, "--minutes", minutes, "--device", "cpu", *SHAPE)
    assert done.code == 0
    first = next(line for line in done.err.splitlines() if "step" in line)
    assert "step 4 " in first
    assert "held-out loss" in done.err
    assert (folder / "target.gguf").is_file()


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--hidden", "320", "expected 64 or a multiple of 128"),
        ("--micro-tokens", "4096", "expected a multiple of --micro-tokens 4096"),
        ("--learning-rate", "nan", "learning rate: expected a number above 0"),
    ],
)
def test_sizes_that_cannot_be_trained_are_refused(
    option: str, value: str, reason: str, folder: Path, fails: Callable[..., str]
) -> None:
    assert reason in fails(2, "train", "target", folder, *SECONDS, *SHAPE, option, value)


@pytest.mark.parametrize(
    ("split", "kept_examples", "reason"),
    [("held_out", 0, "no row of 512 tokens"), ("train", 1, "no row of 1024 tokens")],
)
def test_too_small_a_corpus_is_refused_before_the_training(
    split: str,
    kept_examples: int,
    reason: str,
    folder: Path,
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(*_: Any) -> NoReturn:
        pytest.fail("the training began")

    monkeypatch.setattr(loop.TrainingRun, "train", train)
    examples = np.load(folder / "corpus" / split / "examples.npy")
    tokens = np.fromfile(folder / "corpus" / split / "tokens.bin", np.uint32)
    np.save(folder / "corpus" / split / "examples.npy", examples[:kept_examples])
    tokens[: 700 * kept_examples + 1].tofile(folder / "corpus" / split / "tokens.bin")
    assert reason in fails(1, "train", "target", folder, *SECONDS, *SHAPE)


@pytest.mark.parametrize("step", ["target", "drafter"])
def test_help_says_which_time_minutes_are(step: str, run: Callable[..., Any]) -> None:
    shown = " ".join(run("train", step, "--help").out.split())
    assert "Training time of all calls together; of `drafter --pair`, of this call alone." in shown


def test_a_missing_step_is_named(folder: Path, fails: Callable[..., str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    for step in ("target", "drafter"):
        assert f"run `localdflash train corpus {empty}` first" in fails(1, "train", step, empty, *SECONDS)
    assert f"run `localdflash train target {folder}` first" in fails(1, "train", "drafter", folder, *SECONDS)
