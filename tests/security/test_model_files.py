"""Broken and malicious model files: one error line, exit code 3, bounded time and memory; the daemon survives."""

import json
import os
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from localdflash.base.errors import ModelError
from localdflash.cli import main
from tests.security.gguf_mutations import build, parse
from tests.support import daemons
from tests.support.gguf_bytes import STRING, file, pair, text

LIARS = {"string of 1 GiB": file(pair("k", STRING, text("v", 2**30))), "empty": b""}


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command on a target in this process; return its error line."""
    source = tmp_path / "app.py"
    source.write_text("x = 1\n")

    def call(target: Path, *options: str) -> str:
        arguments = ("complete", f"{source}:1:1", "--no-daemon", "--threads", "1", "--pair", str(target), *options)
        start = time.process_time()
        assert main([*arguments]) == 3
        assert time.process_time() - start < 2
        output = capsys.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1), output.err
        return output.err

    return call


@pytest.mark.parametrize("content", LIARS.values(), ids=LIARS.keys())
def test_inconsistent_files_are_refused(content: bytes, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert f"{path}: " in refused(path)


def test_a_header_in_a_sparse_file_takes_bounded_time_and_memory(tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(file(pair("k", STRING, text("", 2**30)), data=0))
    os.truncate(path, 2**40)
    tracemalloc.start()
    try:
        assert "its header is larger than 128 MiB" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


# A drafter for another target.


@pytest.fixture
def tiny(tiny_pair: Path, tmp_path: Path) -> Path:
    """Copy the tiny pair."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "pair"))


def test_a_drafter_of_another_target_is_refused(tiny: Path, refused: Callable[..., str]) -> None:
    (tiny / "drafter.gguf").unlink()
    path = tiny / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": 600}))
    assert "vocab" in refused(tiny / "target.gguf", "--backend", "torch")


def test_a_drafter_with_inconsistent_metadata_is_refused(tiny: Path, refused: Callable[..., str]) -> None:
    path = tiny / "drafter.gguf"
    field = gguf.GGUFReader(path).fields["dflash.embedding_length"]
    place = field.offset + sum(part.nbytes for part in field.parts[:-1])
    content = path.read_bytes()
    path.write_bytes(content[:place] + struct.pack("<I", 96) + content[place + 4 :])
    assert "drafter.gguf: " in refused(tiny / "target.gguf")


@pytest.mark.system
def test_the_daemon_survives_a_model_that_crashes_llama_cpp(
    tiny_pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file passes every check of its header, and aborts the process that tokenizes with it."""
    parsed = parse((tiny_pair / "target.gguf").read_bytes())
    pairs = [replace(one, items=(b"llama",)) if one.key == "tokenizer.ggml.model" else one for one in parsed.pairs]
    (tmp_path / "bad.gguf").write_bytes(build(replace(parsed, pairs=tuple(pairs))))
    with daemons.short_home(monkeypatch):
        daemons.start()
        with daemons.client() as engine:
            pid = engine.get("/ps")["pid"]
            with pytest.raises(ModelError, match=r"bad\.gguf: the process that tried to load it crashed \(SIGABRT: "):
                engine.post("/load", {"pair": str(tmp_path / "bad.gguf"), "backend": "llama.cpp"})
            assert engine.get("/ps")["pid"] == pid
            assert engine.post("/v1/completions", {"prompt": "def f(", "max_tokens": 3})["choices"]
