"""Model files that lie, as a user meets them: one line, exit code 3, in no time and no memory."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from localdflash.base.errors import ModelError
from localdflash.cli import main
from localdflash.models.weights.gguf import read_header
from tests.support.gguf_bytes import STRING, U8, array, file, pair, tensor, text

# The command line in a process that tells what it took: seconds of the command itself, and the most memory ever held.
PROGRAM = """
import json, sys, time
from pathlib import Path
from localdflash.cli import main
start = time.process_time()
code = main(sys.argv[1:])
status = Path("/proc/self/status")  # getrusage tells of the process that started this one too
held = [line.split()[1] for line in status.read_text().splitlines() if "VmHWM" in line] if status.exists() else []
most = 1024 * int(held[0]) if held else 0
print(json.dumps([code, time.process_time() - start, most]))
"""
LIARS = {
    "string of 1 GiB": file(pair("k", STRING, text("v", 2**30))),
    "key of 1 GiB": file(text("k", 2**30), n_pairs=1),
    "array of 2^61 bytes": file(array("k", U8, 2**61, b"")),
    "2^63 tensors": file(n_tensors=2**63),
    "2^64 bytes that wrap to 0": file(tensors=(tensor(ne=(2**61,), kind=27),)),
    "tensor twice": file(tensors=(tensor("a"), tensor("a", offset=32))),
    "data one byte short": file(tensors=(tensor(),), data=31),
    "zeros": bytes(4096),
    "empty": b"",
}


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The line that a command says about a target, in this process."""
    source = tmp_path / "app.py"
    source.write_text("x = 1\n")

    def call(target: Path, *options: str) -> str:
        arguments = ("complete", f"{source}:1:1", "--no-daemon", "--threads", "1", "--pair", str(target), *options)
        start = time.process_time()
        assert main([*arguments]) == 3
        assert time.process_time() - start < 2
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), told.err
        return told.err

    return call


@pytest.mark.parametrize("content", LIARS.values(), ids=LIARS.keys())
def test_a_file_that_lies(content: bytes, tmp_path: Path, refused: Callable[..., str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert f"{path}: " in refused(path)


@pytest.mark.parametrize("hole", [2**31, 2**40])
def test_a_header_in_a_hole_takes_no_time_and_no_memory(hole: int, tmp_path: Path) -> None:
    path, source = tmp_path / "model.gguf", tmp_path / "app.py"
    source.write_text("x = 1\n")
    path.write_bytes(file(pair("k", STRING, text("", 2**30)), data=0))
    os.truncate(path, hole)
    arguments = ("complete", f"{source}:1:1", "--no-daemon", "--threads", "1", "--pair", str(path))
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout, done.stderr
    code, seconds, most = json.loads(done.stdout)
    assert (code, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "its header is larger than 128 MiB" in done.stderr
    assert seconds < 1
    assert most < 200_000_000


@pytest.mark.parametrize("kind", ["fifo", "link to a fifo", "link to zero", "folder", "loop", "dangling"])
def test_what_is_no_file(kind: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    path, other = tmp_path / "model.gguf", tmp_path / "other"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link to a fifo":
            os.mkfifo(other)
            path.symlink_to(other)
        case "link to zero":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "dangling":
            path.symlink_to(other)
    said = {"folder": "a folder, not a", "loop": "no such", "dangling": "no such"}.get(kind, "not a")
    assert f"model.gguf: {said} .gguf file" in refused(path)


def test_a_link_to_a_model_is_the_model(tiny_pair: Path, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to(tiny_pair / "target.gguf")
    assert read_header(tmp_path / "model.gguf").architecture == "qwen3"


# A drafter for another target.


@pytest.fixture
def tiny(tiny_pair: Path, tmp_path: Path) -> Path:
    """A copy of the tiny pair to change."""
    return Path(shutil.copytree(tiny_pair, tmp_path / "pair"))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("vocab_size", 600, "vocab"),
        ("hidden_size", 96, "drafter.safetensors: "),
        ("target_layer_ids", [1, 3, 5], "taps block 5"),
        ("target_layer_ids", [1, 3, 2**31], "target_layer_ids"),
        ("target_layer_ids", [-1, 3, 4], "target_layer_ids"),
        ("mask_token_id", 10**6, "mask"),
        ("block_size", 0, "block"),
    ],
)
def test_a_drafter_of_another_target(key: str, value: Any, said: str, tiny: Path, refused: Callable[..., str]) -> None:
    (tiny / "drafter.gguf").unlink()
    path = tiny / "config.json"
    config = json.loads(path.read_text())
    (config["dflash_config"] if key in config["dflash_config"] else config)[key] = value
    path.write_text(json.dumps(config))
    assert said in refused(tiny / "target.gguf", "--backend", "torch")


@pytest.mark.parametrize("key", ["dflash.embedding_length", "dflash.block_count", "dflash.attention.head_count"])
def test_a_drafter_whose_metadata_lies(key: str, tiny: Path, refused: Callable[..., str]) -> None:
    change_number(tiny / "drafter.gguf", key, 96)
    assert "drafter.gguf: " in refused(tiny / "target.gguf")


def change_number(path: Path, key: str, value: int) -> None:
    """Another value for an unsigned 32-bit key of a GGUF file."""
    field = gguf.GGUFReader(path).fields[key]
    place = field.offset + sum(part.nbytes for part in field.parts[:-1])
    content = path.read_bytes()
    path.write_bytes(content[:place] + struct.pack("<I", value) + content[place + 4 :])


# Every size of a valid header, told wrong.

VALID = file(pair("key", STRING, text("value")), tensors=(tensor("t", (8,)),), data=32)
# Where it keeps its 64-bit sizes and counts: tensors, keys, the length of a key, of a name, of an axis.
SIZES = [8, 16, 24, VALID.index(b"\1\0\0\0\0\0\0\0t"), VALID.index(b"t" + struct.pack("<I", 1)) + 5]


@pytest.mark.parametrize("place", SIZES, ids=["tensors", "keys", "key", "name", "axis"])
def test_a_size_that_is_told_wrong(place: int, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(VALID)
    read_header(path)
    for delta in (1, -1, 2**31, 2**63, -(2**31)):
        size = (int.from_bytes(VALID[place : place + 8], "little") + delta) % 2**64
        path.write_bytes(VALID[:place] + struct.pack("<Q", size) + VALID[place + 8 :])
        if delta == -1 and place in (SIZES[0], SIZES[4]):  # a tensor or a weight less is a valid file
            tensors = read_header(path).tensors.values()
            assert [info.shape for info in tensors] == ([] if place == SIZES[0] else [(7,)])
            continue
        with pytest.raises(ModelError):
            read_header(path)
