"""Which files can be found and read, which never are, and that nobody waits long."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import MAX_ATTACHED_BYTES, AttachableFiles, FileMatch

PATIENCE = 20.0  # seconds
BOX = "class Box:\n    def __init__(self):\n        self.x = 1\n\n    @property\n    def add(self):\n        return 2\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    return root


@pytest.fixture
def write(folder: Path) -> Callable[[str, str], Path]:
    def put(name: str, text: str = "x = 1\n") -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return put


@pytest.fixture
def files(folder: Path) -> Iterator[AttachableFiles]:
    opened = AttachableFiles(folder)
    yield opened
    opened.close()


def names(hits: list[FileMatch]) -> list[str]:
    return [hit.name for hit in hits]


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return done


def test_symbols(files: AttachableFiles, write: Callable[..., Path]) -> None:
    write("box.py", BOX)
    assert until(lambda: "box.py:Box.add" in names(files.find("add")))
    assert names(files.find("Box"))[:2] == ["box.py", "box.py:Box"]
    assert names(files.find("box.py:")) == ["box.py:Box", "box.py:Box.add"]
    (hit,) = files.find("box.py:ad")
    assert "".join(hit.name[at] for at in hit.marked) == "ad"
    found = files.read(hit.path, hit.symbol)
    assert (found.kind, found.name) == ("symbol", "box.py:Box.add")
    assert found.text == "    @property\n    def add(self):\n        return 2\n"


def test_a_home_folder_is_listed_but_not_indexed(
    folder: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: folder)
    write("box.py", BOX)
    files = AttachableFiles(folder)
    assert names(files.find("box")) == ["box.py"]
    assert until(lambda: not files._indexing)
    assert files._workspace is None


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ("0-1", "a.py:0-1: lines are given as first-last, counted from 1"),
        ("3-2", "a.py:3-2: lines are given as first-last, counted from 1"),
        ("1-9", "a.py:1-9: the file has 1 lines"),
        ("Nothing", "a.py defines no Nothing"),
    ],
)
def test_parts_that_are_not_there(files: AttachableFiles, write: Callable[..., Path], part: str, reason: str) -> None:
    write("a.py")
    with pytest.raises(UsageError) as error:
        files.read("a.py", part)
    assert str(error.value) == reason


def test_what_cannot_be_attached(files: AttachableFiles, folder: Path, write: Callable[..., Path]) -> None:
    (folder / "image.png").write_bytes(b"\x89PNG\0\xff")
    (folder / "latin.txt").write_bytes("Größe".encode("latin-1"))
    (folder / "large.txt").write_text("x" * (MAX_ATTACHED_BYTES + 1))
    (folder / "huge.txt").write_text("x" * 2_200_000)
    (folder / "most.txt").write_text("x" * MAX_ATTACHED_BYTES)
    (folder / "inside").mkdir()
    os.mkfifo(folder / "pipe")
    assert len(files.read("most.txt").text) == MAX_ATTACHED_BYTES
    reasons = {
        "image.png": "image.png: is no text in UTF-8",
        "latin.txt": "latin.txt: is no text in UTF-8",
        "large.txt": "large.txt: 256 KB: at most 256 KB of a file can be attached",
        "huge.txt": "huge.txt: 2.1 MB: at most 256 KB of a file can be attached",
        "inside": "inside: is a folder: name a file in it",
        "nothing.py": "nothing.py: no such file",
        "nul\0.py": "nul␀.py: no such file",
        "pipe": "pipe: no such file",
    }
    for name, reason in reasons.items():
        with pytest.raises(UsageError) as error:
            files.read(name)
        assert str(error.value) == reason


def test_the_listing_is_bounded_and_says_so(
    folder: Path, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from localdflash.code.context import listing

    for number in range(10):
        write(f"deep/{number}.py")
    write("top.py")
    told: list[str] = []
    monkeypatch.setattr(listing.list_files, "__kwdefaults__", {"most": 5, "seconds": 2.0})
    files = AttachableFiles(folder, told.append)
    assert names(files.find(""))[0] == "top.py"
    assert len(files.find("")) == 5
    assert told == ["only 5 files of this folder are listed: the others go by their path"]
    assert files.read("deep/9.py").name == "deep/9.py"
    files.close()
