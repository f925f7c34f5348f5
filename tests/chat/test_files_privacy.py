"""A canary in files that may not be used is never listed, never read, however it is named."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.mentions import attach_mentions

CANARY = "CANARY_5be0"
SECRET = [".env", ".env.local", "prod.ENV", "Secrets.PY", "id_rsa", ".ssh/config", "deep/.aws/credentials", "x.pem"]
IGNORED = ["ignored.py", "out/a.py", "deep/private.py", "mine/notes.md"]
VERSIONED = [".git/config"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
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
def files(folder: Path) -> Iterator[AttachableFiles]:
    opened = AttachableFiles(folder)
    yield opened
    opened.close()


def ways(folder: Path, name: str) -> list[str]:
    """All the ways to write one path."""
    return [name, f"./{name}", f"{folder}/{name}", f"plain/../{name}", f"../{folder.name}/{name}", f"{folder}//{name}"]


@pytest.mark.parametrize("name", [*SECRET[::2], *IGNORED[1:], *VERSIONED])
def test_never_listed_nor_read(files: AttachableFiles, folder: Path, name: str) -> None:
    for query in ("", CANARY, name, name.rsplit("/", maxsplit=1)[-1], *name.lower()):
        hits = files.find(query, 1_000)
        assert not {hit.path.lower() for hit in hits} & {one.lower() for one in (*SECRET, *IGNORED, *VERSIONED)}
    for way in ways(folder, name):
        with pytest.raises(UsageError) as error:
            files.read(way)
        assert CANARY not in str(error.value)
        assert "\n" not in str(error.value)
        for mention in (f"@{way}", f'@"{way}"', f"@{way}:1-2", f"@{way}:{CANARY}"):
            found = attach_mentions(f"what is in {mention} here", files)
            assert found.attachments == ()
            assert len(found.refused) == 1
        assert files.relative(way) is None


@pytest.mark.parametrize("way", ["../outside.txt", "{root}/../outside.txt", "../project-two/a.txt", "/etc/passwd"])
def test_nothing_outside(files: AttachableFiles, folder: Path, way: str) -> None:
    with pytest.raises(UsageError, match="lies outside of this folder"):
        files.read(way.format(root=folder))


@pytest.mark.parametrize("target", [".env", "out/a.py", "../outside.txt", ".git/config", "/etc/passwd"])
def test_links_lead_nowhere(files: AttachableFiles, folder: Path, target: str) -> None:
    (folder / "linked").symlink_to(folder.parent / "project-two")
    assert not [hit for hit in files.find("", 100) if hit.path.startswith("linked")]
    with pytest.raises(UsageError, match="lies outside"):
        files.read("linked/a.txt")
    (folder / "link.py").symlink_to(target if target.startswith("/") else folder / target)
    assert "link.py" not in [hit.path for hit in files.find("link")]
    with pytest.raises(UsageError):
        files.read("link.py")
    assert attach_mentions("see @link.py", files).attachments == ()


def test_rules_that_change_hold_at_once(files: AttachableFiles, folder: Path) -> None:
    assert files.read("plain.py").text
    with open(folder / ".gitignore", "a") as rules:
        rules.write("plain.py\n")
    with pytest.raises(UsageError, match="left out"):
        files.read("plain.py")


def test_names_that_cannot_be_shown_are_not_listed(files: AttachableFiles, folder: Path) -> None:
    for name in ("a\x1b]0;x\x07.py", "b\nc.py", "d\u202e.py", os.fsdecode(b"e\xff.py")):
        (folder / name).write_text("x")
    assert [hit.path for hit in files.find("", 100)] == [
        ".gitignore",
        ".localdflashignore",
        "plain.py",
        "deep/.gitignore",
    ]
