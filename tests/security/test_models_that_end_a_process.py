"""A model that trips an assertion of llama.cpp, or hangs it, as users of one engine meet it: a line, and it goes on."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from localdflash.base.errors import ModelError
from tests.security.gguf_mutations import build, parse
from tests.support.daemons import PROGRAM, client, daemons, short_home, start

pytestmark = pytest.mark.system


@pytest.fixture
def engine_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def bad(tiny_pair: Path, tmp_path: Path) -> Path:
    """A file that passes every check of its header and ends the process in which it is tokenised with."""
    parsed = parse((tiny_pair / "target.gguf").read_bytes())
    pairs = [replace(one, items=(b"llama",)) if one.key == "tokenizer.ggml.model" else one for one in parsed.pairs]
    path = tmp_path / "bad.gguf"
    path.write_bytes(build(replace(parsed, pairs=tuple(pairs))))
    return path


def test_the_engine_goes_on_with_the_pair_that_it_has(engine_home: Path, bad: Path) -> None:
    start()
    with client() as engine:
        pid = engine.get("/ps")["pid"]
        with pytest.raises(ModelError, match=r"bad\.gguf: the process that tried to load it crashed \(SIGABRT: "):
            engine.post("/load", {"pair": str(bad), "backend": "llama.cpp"})
        assert engine.get("/ps")["pid"] == pid
        assert engine.post("/v1/completions", {"prompt": "def f(", "max_tokens": 3})["choices"]


def test_a_command_says_one_line_and_the_next_one_runs(engine_home: Path, bad: Path, tmp_path: Path) -> None:
    source = tmp_path / "app.py"
    source.write_text("x = 1\n")
    command = [sys.executable, "-P", "-c", PROGRAM, "complete", f"{source}:1:6", "--max-tokens", "2", "--rows", "fast"]
    done = subprocess.run([*command, "--pair", str(bad)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done
    assert done.stderr.count("\n") == 1
    assert "bad.gguf: the process that tried to load it crashed" in done.stderr
    assert not daemons(engine_home)
    done = subprocess.run([*command, "--pair", "embedded"], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done
