"""Roles: shipped, of the user, and broken files."""

import os
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat.roles import BUILTIN, MAX_ROLE_BYTES, list_roles, load_role


@pytest.fixture
def folder(home: Path) -> Path:
    folder = home / "config" / "roles"
    folder.mkdir(parents=True)
    return folder


def fail_on_notice(line: str) -> None:
    raise AssertionError(f"unexpected notice: {line}")


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_role(name)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_user_roles_override_shipped_roles(folder: Path) -> None:
    (folder / "pirate.md").write_bytes(b"\xef\xbb\xbf\nTalk like a pirate.\r\nArr \xe2\x98\xa0.\n\n")
    (folder / "coder.md").write_text("Write Haskell.")
    (folder / "notes.txt").write_text("not a role")
    (folder / "linked-1_x.md").symlink_to("coder.md")
    assert load_role("pirate") == list_roles(fail_on_notice)["pirate"] == "Talk like a pirate.\r\nArr ☠."
    assert load_role("coder") == list_roles()["coder"] == load_role("linked-1_x") == "Write Haskell."
    assert list(list_roles()) == sorted({*BUILTIN, "pirate", "linked-1_x"})


BROKEN = {
    "latin": (b"fine\ncaf\xe9", r"latin.md:2: not UTF-8; save the file as UTF-8"),
    "large": (b"x" * (MAX_ROLE_BYTES + 1), "large.md: larger than 64 KiB; shorten it"),
    "empty": (b" \n", "empty.md: empty file"),
}


def test_broken_role_files_are_reported_and_skipped(folder: Path) -> None:
    (folder / "good.md").write_text("Be good.")
    (folder / "coder.md").write_text("")  # hides the shipped role
    (folder / "My Role.md").write_text("x")
    (folder / "full.md").write_bytes(b"x" * MAX_ROLE_BYTES)
    for name, (data, _) in BROKEN.items():
        (folder / f"{name}.md").write_bytes(data)
    (folder / "folder.md").mkdir()
    (folder / "gone.md").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.md")
    notices: list[str] = []
    found = list_roles(notices.append)
    assert found.keys() == {*BUILTIN, "good", "full"} - {"coder"}
    assert "is not a role name" in notices.pop(0)
    expected = {
        **{name: f"{folder}/{words}" for name, (_, words) in BROKEN.items()},
        "coder": f"{folder}/coder.md: empty file",
        "folder": f"{folder}/folder.md: not a regular file",
        "gone": f"{folder}/gone.md: cannot be read: No such file or directory",
        "pipe": f"{folder}/pipe.md: not a regular file",
    }
    assert notices == [expected[name] for name in sorted(expected)]
    for name, line in expected.items():
        assert refused(name) == line
