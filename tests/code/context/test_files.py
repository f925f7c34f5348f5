"""Only plain, small text is read, and nothing through a link."""

import os
import socket
import time
from pathlib import Path

import pytest

from localdflash.code.context.files import MAX_FILE_BYTES, clean_name, read_bytes, read_signature, read_text
from localdflash.code.context.ignore import IgnoreRules
from localdflash.code.context.listing import SKIPPED, list_files


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfea\0", b"caf\xe9", b"x" * 5_001, b"x" * (MAX_FILE_BYTES + 1)])
def test_binary_minified_and_large_files_are_refused(root: Path, data: bytes) -> None:
    (root / "a").write_bytes(data)
    assert read_text(str(root), "a") is None


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/outside", "", ".", "a//b", "a\0b", "missing/x"])
def test_paths_out_of_the_root_are_refused(root: Path, name: str) -> None:
    (root.parent / "outside").write_text("CANARY")
    assert read_bytes(str(root), name) is None


def test_links_are_not_followed(root: Path) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "x.py").write_text("CANARY")
    (root / "folder").symlink_to(outside)
    (root / "file.py").symlink_to(outside / "x.py")
    (root / "loop").symlink_to("loop")
    (root / "folder.py").mkdir()
    descriptors = len(os.listdir("/proc/self/fd"))
    for name in ("folder/x.py", "file.py", "loop", "loop/x", "folder.py"):
        assert read_bytes(str(root), name) is None
    assert read_signature(str(root / "file.py")) is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_special_files_are_refused_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "fifo.py")
    (root / "folder.py").mkdir()
    monkeypatch.chdir(root)  # names of sockets are short
    before = time.monotonic()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
        for name in ("fifo.py", "folder.py", "socket.py"):
            assert read_bytes(str(root), name) is None
            assert read_signature(str(root / name)) is None
    assert read_bytes("/dev", "zero") is None
    assert time.monotonic() - before < 1


def test_names_are_one_printable_line() -> None:
    assert clean_name("a/b.py") == "a/b.py"
    assert clean_name("a\n\x1b]52;c;\x07\u202e\udc80\t.py").isprintable()


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def test_rules_secrets_and_dependencies_are_left_out(root: Path) -> None:
    write(root, "a.py", "b.log", "kept.log", ".env", "deep/x.key", ".ssh/config", "out/a.py", "mine/a.py")
    write(root, *(f"{at}{folder}/a.py" for folder in SKIPPED for at in ("", "deep/")))
    (root / ".gitignore").write_text("*.log\n!kept.log\nout/\n")
    (root / ".localdflashignore").write_text("mine\n")
    assert list_files(str(root), IgnoreRules(root)).names == (".gitignore", ".localdflashignore", "a.py", "kept.log")


def test_links_and_odd_files(root: Path, tmp_path: Path) -> None:
    write(root, "a.py")
    (tmp_path / "outside").mkdir()
    write(tmp_path / "outside", "b.py")
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "link.py").symlink_to(root / "a.py")
    os.mkfifo(root / "pipe")
    assert list_files(str(root), IgnoreRules(root)).names == ("a.py",)
