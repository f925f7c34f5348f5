"""`localdflash train drafter --pair`: from a target and some questions to a pair that runs."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.cli import main
from localdflash.lab.train import adapter_corpus, adapter_mixture, batched_answers, training_needs
from localdflash.lab.train.adapter_corpus import Archive
from localdflash.lab.train.stored_answers import StoredAnswers
from localdflash.lab.train.training_prompts import COMPLETIONS
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.fingerprint import mismatch
from localdflash.models.weights.gguf import read_header

SHORTLY = ("--minutes", "0.01", "--tokens", "1000", "--sequences", "2", "--anchors", "8")
QUICK = (*SHORTLY, "--short", "100")


@pytest.fixture(scope="module")
def target(tiny_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a target without a drafter."""
    return Path(shutil.copy(tiny_pair / "target.gguf", tmp_path_factory.mktemp("lone") / "target.gguf"))


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("questions") / "mine.jsonl"
    path.write_text("".join(f'{{"text": "What is {n}?"}}\n' for n in range(24)))
    return path


@pytest.fixture(scope="module")
def trained(target: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "new" / "folder"
    arguments = ["train", "drafter", str(folder), "--pair", str(target), "--prompts", str(questions), *QUICK]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batched_answers, "MAX_ANSWER", 60)
        assert main(arguments) == 0
    return folder


def test_training_writes_drafter_and_target(trained: Path, target: Path) -> None:
    for name in ("drafter.gguf", "drafter.safetensors", "config.json", "prompts.jsonl", "training/training.png"):
        assert (trained / name).is_file(), name
    assert (trained / "target.gguf").samefile(target)
    config = config_of_file(trained / "drafter.gguf")
    assert config.taps == (1, 2, 3)  # of six blocks
    assert config.short == config_of_file(trained / "drafter.safetensors").short
    assert len(config.short) == 100
    assert config.trained_for
    assert config.trained_for.tau >= 1.0
    assert mismatch(trained / "drafter.gguf", config.trained_for, read_header(trained / "target.gguf")) == ""
    assert StoredAnswers.load(trained / "answers").count_answer_tokens() >= 1000
    assert trained.stat().st_mode & 0o077 == 0
    found = local_files(load_registry().resolve(str(trained / "target.gguf")))
    assert found.drafter_gguf == trained / "drafter.gguf"


@pytest.mark.nightly
def test_the_trained_pair_drafts(trained: Path, run: Callable[..., Any]) -> None:
    given = ("chat", "-p", "What is 3?", "--no-daemon", "--backend", "llama.cpp", "--max-tokens", "12")
    pair = ("--pair", str(trained / "target.gguf"))
    drafted, plain = run(*given, *pair), run(*given, *pair, "--no-draft")
    assert (drafted.code, plain.code) == (0, 0)
    assert drafted.out == plain.out


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_loses_no_stored_answers(
    target: Path, questions: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(batched_answers, "MAX_ANSWER", 60)
    monkeypatch.setattr(training_needs, "SEQUENCE_COUNTS", (4,))
    arguments = ("train", "drafter", tmp_path / "folder", "--pair", target, "--prompts", questions, *QUICK)
    whole, calls = batched_answers._step, 0

    def stopped(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 130:
            signal.raise_signal(signal.SIGINT)
        whole(*given)

    with monkeypatch.context() as patch:
        patch.setattr(batched_answers, "_step", stopped)
        found = run(*arguments)
    assert (found.code, found.out) == (130, "")
    assert "internal error" not in found.err
    kept = StoredAnswers.load(tmp_path / "folder" / "answers")
    assert len(kept.index) >= 1
    assert run(*arguments).code == 0
    again = StoredAnswers.load(tmp_path / "folder" / "answers")
    assert (again.index[: len(kept.index)] == kept.index).all()
    assert len(set(again.index["number"].tolist())) == len(again.index)


CODE = "def add(first, second):\n    total = first + second\n    return total\n\n\n" * 20


@pytest.fixture(scope="module")
def completing(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a drafter for completions, started from the tiny pair's; return its folder."""
    folder = tmp_path_factory.mktemp("completing") / "folder"
    packages = [Archive(Path("learned"), False), Archive(Path("kept"), True)]
    arguments = ["train", "drafter", str(folder), "--pair", str(target), "--completions", *SHORTLY, "--short", "90"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter_corpus, "fetch_archives", lambda _: packages)
        patch.setattr(adapter_mixture, "read_sources", lambda archive: {f"{archive.path.name}.py": CODE})
        assert main(arguments) == 0
        assert main(arguments) == 0
    return folder


@pytest.mark.nightly
def test_a_drafter_for_completions(completing: Path) -> None:
    prompts = [json.loads(line) for line in (completing / "prompts.jsonl").read_text().splitlines()]
    kept = StoredAnswers.load(completing / "answers")
    assert {"rest", "line", "node", "open"} <= {prompt["kind"] for prompt in prompts} <= set(COMPLETIONS)
    assert any(prompt["held_out"] for prompt in prompts)
    for row in kept.index:
        prompt = prompts[row["number"]]
        start, asked = int(row["start"]), int(row["prompt"])
        assert kept.tokens[start : start + asked].tolist() == prompt["ids"]
        assert int(row["length"]) - asked <= batched_answers.MAX_COMPLETION
    assert kept.count_answer_tokens() >= 1000
    assert len(config_of_file(completing / "drafter.gguf").short) == 90


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (("--batch-tokens", "2048"), 2, "--batch-tokens: only without --pair"),
        (("--taps", "1,5"), 3, "tap 5: not a layer of the target (expected 0 to 4)"),
        (("--completions",), 2, "--prompts cannot be combined with --completions"),
        (("--start", __file__, "--fresh"), 2, "--start and --fresh: choose one"),
    ],
)
def test_invalid_options_are_refused(
    options: tuple[str, ...],
    code: int,
    reason: str,
    target: Path,
    questions: Path,
    fails: Callable[..., str],
    tmp_path: Path,
) -> None:
    arguments = ("--pair", target, "--prompts", questions, *QUICK, *options)
    assert reason in fails(code, "train", "drafter", tmp_path / "folder", *arguments)
