"""Files that may be attached: found, read, and refused, by every name that leads to them."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import MAX_ATTACHED_BYTES, AttachableFiles, FileMatch
from localdflash.chat.mentions import attach_mentions

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
    monkeypatch.setattr(listing, "MAX_FILES", 5)
    files = AttachableFiles(folder, told.append)
    assert names(files.find(""))[0] == "top.py"
    assert len(files.find("")) == 5
    assert told == ["only 5 files of this folder are listed: the others go by their path"]
    assert files.read("deep/9.py").name == "deep/9.py"
    files.close()


CANARY = "CANARY_5be0"
SECRET = [".env", ".env.local", "prod.ENV", "Secrets.PY", "id_rsa", ".ssh/config", "deep/.aws/credentials", "x.pem"]
IGNORED = ["ignored.py", "out/a.py", "deep/private.py", "mine/notes.md"]
VERSIONED = [".git/config"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (*SECRET, *IGNORED, *VERSIONED, "plain.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"def {CANARY}():\n    pass\n" if name != "plain.py" else "def plain():\n    pass\n")
    (root / ".gitignore").write_text("ignored.py\nout/\n")
    (root / "deep" / ".gitignore").write_text("private.py\n")
    (root / ".localdflashignore").write_text("mine/\n")
    (tmp_path / "outside.txt").write_text(CANARY)
    (tmp_path / "project-two").mkdir()
    (tmp_path / "project-two" / "a.txt").write_text(CANARY)
    return root


@pytest.fixture
def listed(project: Path) -> Iterator[AttachableFiles]:
    opened = AttachableFiles(project)
    yield opened
    opened.close()


def ways(project: Path, name: str) -> list[str]:
    """All the ways to write one path."""
    return [
        name,
        f"./{name}",
        f"{project}/{name}",
        f"plain/../{name}",
        f"../{project.name}/{name}",
        f"{project}//{name}",
    ]


@pytest.mark.parametrize("name", [*SECRET[::2], *IGNORED[1:], *VERSIONED])
def test_never_listed_nor_read(listed: AttachableFiles, project: Path, name: str) -> None:
    for query in ("", CANARY, name, name.rsplit("/", maxsplit=1)[-1], *name.lower()):
        hits = listed.find(query, 1_000)
        assert not {hit.path.lower() for hit in hits} & {one.lower() for one in (*SECRET, *IGNORED, *VERSIONED)}
    for way in ways(project, name):
        with pytest.raises(UsageError) as error:
            listed.read(way)
        assert CANARY not in str(error.value)
        assert "\n" not in str(error.value)
        for mention in (f"@{way}", f'@"{way}"', f"@{way}:1-2", f"@{way}:{CANARY}"):
            found = attach_mentions(f"what is in {mention} here", listed)
            assert found.attachments == ()
            assert len(found.refused) == 1
        assert listed.relative(way) is None


@pytest.mark.parametrize("way", ["../outside.txt", "{root}/../outside.txt", "../project-two/a.txt", "/etc/passwd"])
def test_nothing_outside(listed: AttachableFiles, project: Path, way: str) -> None:
    with pytest.raises(UsageError, match="lies outside of this folder"):
        listed.read(way.format(root=project))


@pytest.mark.parametrize("target", [".env", "out/a.py", "../outside.txt", ".git/config", "/etc/passwd"])
def test_links_lead_nowhere(listed: AttachableFiles, project: Path, target: str) -> None:
    (project / "linked").symlink_to(project.parent / "project-two")
    assert not [hit for hit in listed.find("", 100) if hit.path.startswith("linked")]
    with pytest.raises(UsageError, match="lies outside"):
        listed.read("linked/a.txt")
    (project / "link.py").symlink_to(target if target.startswith("/") else project / target)
    assert "link.py" not in [hit.path for hit in listed.find("link")]
    with pytest.raises(UsageError):
        listed.read("link.py")
    assert attach_mentions("see @link.py", listed).attachments == ()


def test_rules_that_change_hold_at_once(listed: AttachableFiles, project: Path) -> None:
    assert listed.read("plain.py").text
    with open(project / ".gitignore", "a") as rules:
        rules.write("plain.py\n")
    with pytest.raises(UsageError, match="left out"):
        listed.read("plain.py")


def test_names_that_cannot_be_shown_are_not_listed(listed: AttachableFiles, project: Path) -> None:
    for name in ("a\x1b]0;x\x07.py", "b\nc.py", "d\u202e.py", os.fsdecode(b"e\xff.py")):
        (project / name).write_text("x")
    assert [hit.path for hit in listed.find("", 100)] == [
        ".gitignore",
        ".localdflashignore",
        "plain.py",
        "deep/.gitignore",
    ]
