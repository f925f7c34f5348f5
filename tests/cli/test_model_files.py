"""Model files that cannot be used: exit code 3 and one line, whatever is wrong with them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

CUTS = (0, 3, 4, 24, 1000, 20_000, -1)


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "app.py").write_text("def f():\n    ")
    return f"{tmp_path / 'app.py'}:2:5"


@pytest.fixture
def pair(tiny_pair: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pair to damage."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "pair"))


@pytest.fixture
def refused(fails: Callable[..., str], code: str) -> Callable[..., str]:
    """The line that `complete` says about a target."""
    return lambda target, *options: fails(
        3, "complete", code, "--no-daemon", "--pair", target, "--threads", 1, *options
    )


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["target.gguf", "drafter.gguf"])
def test_truncated(name: str, cut: int, pair: Path, refused: Callable[..., str]) -> None:
    path = pair / name
    path.write_bytes(path.read_bytes()[:cut])
    assert str(path) in refused(pair / "target.gguf")


@pytest.mark.parametrize("backend", ["llama.cpp", "torch"])
@pytest.mark.parametrize("content", [b"\0" * 4096, b"GGUF" + b"\xff" * 4096, b"PK\x03\x04" + bytes(range(256)) * 9])
def test_not_a_model(content: bytes, backend: str, pair: Path, refused: Callable[..., str]) -> None:
    (pair / "target.gguf").write_bytes(content)
    assert "target.gguf: " in refused(pair / "target.gguf", "--backend", backend)


def test_safetensors_that_are_damaged(pair: Path, refused: Callable[..., str]) -> None:
    (pair / "drafter.gguf").unlink()
    path = pair / "drafter.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    assert "drafter.safetensors: " in refused(pair / "target.gguf", "--backend", "torch")


def test_a_drafter_of_another_target(pair: Path, refused: Callable[..., str]) -> None:
    (pair / "drafter.gguf").unlink()
    config = json.loads((pair / "config.json").read_text())
    config["dflash_config"]["target_layer_ids"] = [1, 3, 5]
    (pair / "config.json").write_text(json.dumps(config))
    said = refused(pair / "target.gguf", "--backend", "torch")
    assert "taps block 5, but the target has blocks 0 to 4 to tap" in said


def test_the_drafter_given_as_the_target(pair: Path, refused: Callable[..., str]) -> None:
    assert "drafter.gguf: " in refused(pair / "drafter.gguf", "--backend", "torch")


@pytest.mark.parametrize("backend", ["llama.cpp", "torch"])
def test_a_foreign_architecture(backend: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "foreign.gguf"
    writer = gguf.GGUFWriter(path, "no-such-architecture")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "no-such-architecture" in refused(path, "--backend", backend)


@pytest.mark.parametrize(
    ("pair_id", "said"),
    [("/no/such/target.gguf", "/no/such/target.gguf: no such .gguf file"), ("no-such-pair", "no pair 'no-such-pair'")],
)
def test_no_such_pair(pair_id: str, said: str, refused: Callable[..., str]) -> None:
    assert said in refused(pair_id)


def test_a_folder_is_no_model(tmp_path: Path, refused: Callable[..., str]) -> None:
    (tmp_path / "x.gguf").mkdir()
    assert "x.gguf: a folder, not a .gguf file" in refused(tmp_path / "x.gguf")


@pytest.mark.parametrize("command", [("chat", "--no-daemon", "-p", "x"), ("bench", "--limit", "1")])
def test_other_commands_say_the_same(command: tuple[str, ...], pair: Path, fails: Callable[..., str]) -> None:
    path = pair / "target.gguf"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path}: broken GGUF file" in fails(3, *command, "--pair", path)


@pytest.mark.system
def test_a_process_says_it_in_one_line_too(pair: Path, code: str) -> None:
    """What the library writes to the terminal by itself would show only here."""
    (pair / "drafter.gguf").write_bytes(b"GGUF")
    program = "import sys; from localdflash.cli import main; sys.exit(main())"
    arguments = ("complete", code, "--no-daemon", "--pair", str(pair / "target.gguf"), "--threads", "1")
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done.stderr
