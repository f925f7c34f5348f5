"""`localdflash chat -p`: one answer for scripts, and the errors for bad prompts and values."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def read_from(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Make stdin a pipe that ends after these bytes."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    monkeypatch.setattr(sys, "stdin", open(read, encoding="utf-8"))  # noqa: SIM115


def test_stdout_is_the_answer_or_json_with_the_statistics(chat: Callable[..., Any]) -> None:
    document = json.loads(chat("-p", "What is zip?", "--max-tokens", 5, "--json").out)
    assert document.keys() >= {"answer", "finish", "tokens", "steps", "tau", "accept_by_slot", "tokens_per_second"}
    assert Path(document["model"]).name == "target.gguf"
    assert (document["finish"], document["steps"] + document["accepted"], document["tokens"]) == ("length", 5, 5)
    done = chat("-p", "What is zip?", "--max-tokens", 5)
    assert (done.code, done.out) == (0, document["answer"] + "\n")
    assert "cut after 5 tokens" in done.err


def test_stdin_is_attached_to_a_prompt_in_a_fence(
    chat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    plain_answer = chat("-p", "Review.", "--max-tokens", 20).out
    with open(os.devnull, encoding="utf-8") as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        assert chat("-p", "Review.", "--max-tokens", 20).out == plain_answer
    expected = chat("-p", "stdin:\n````\n-x\n```\n+y\n````\n\nReview.", "--max-tokens", 20).out
    read_from(monkeypatch, b"-x\n```\n+y\n")
    assert chat("-p", "Review.", "--max-tokens", 20).out == expected != plain_answer
    sys.stdin.close()
    (tmp_path / "stdin").write_bytes(b"-x\n```\n+y\n")
    with (tmp_path / "stdin").open(encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert chat("-p", "Review.", "--max-tokens", 20).out == expected


def test_mentioned_file_is_attached_or_refused(
    chat: Callable[..., Any], fails: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", None)
    (tmp_path / "app.bin").write_bytes(b"\0\1")
    plain_answer = chat("-p", "Explain @app.py", "--max-tokens", 20).out
    (tmp_path / "app.py").write_text("x = 1\n", "utf-8")
    assert chat("-p", "Explain @app.py", "--max-tokens", 20).out != plain_answer
    assert "app.bin" in fails(2, "chat", "-p", "Explain @app.bin")


class Screen(io.TextIOWrapper):
    """Stdin that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_bad_prompts_and_values(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "prompt is empty" in fails(2, "chat", "-p", "  \n\t")
    for data, message in ((b"  \n\t", "prompt is empty"), (b"a\xff", "not UTF-8 at byte 1")):
        pipe(monkeypatch, data)
        assert message in fails(2, "chat")
    monkeypatch.setattr(sys, "stdin", None)
    assert "prompt is empty" in fails(2, "chat")
    with open("/dev/zero", encoding="utf-8") as endless:
        monkeypatch.setattr(sys, "stdin", endless)
        assert "16 MiB" in fails(2, "chat")
    monkeypatch.setattr(sys, "stdin", Screen(io.BytesIO()))
    assert "--json" in fails(2, "chat", "--json")
    assert "temperature" in fails(2, "chat", "-p", "x", "--temperature", "-1")
    assert "did you mean 'embedded'?" in fails(3, "chat", "--no-daemon", "-p", "x", "--pair", "embeded")
