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


def silent(line: str) -> None:
    raise AssertionError(f"nothing was to be said: {line}")


def refused(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_role(name)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_the_users_own_win(folder: Path) -> None:
    (folder / "pirate.md").write_bytes(b"\xef\xbb\xbf\nTalk like a pirate.\r\nArr \xe2\x98\xa0.\n\n")
    (folder / "coder.md").write_text("Write Haskell.")
    (folder / "notes.txt").write_text("not a role")
    (folder / "linked-1_x.md").symlink_to("coder.md")
    assert load_role("pirate") == list_roles(silent)["pirate"] == "Talk like a pirate.\r\nArr ☠."
    assert load_role("coder") == list_roles()["coder"] == load_role("linked-1_x") == "Write Haskell."
    assert list(list_roles()) == sorted({*BUILTIN, "pirate", "linked-1_x"})


BROKEN = {
    "latin": (b"fine\ncaf\xe9", r"latin.md:2: not UTF-8; save the file as UTF-8"),
    "large": (b"x" * (MAX_ROLE_BYTES + 1), "large.md: larger than 64 KiB; shorten it"),
    "empty": (b" \n", "empty.md: is empty"),
}


def test_broken_files_are_said_to_be_and_do_not_break_the_others(folder: Path) -> None:
    (folder / "good.md").write_text("Be good.")
    (folder / "coder.md").write_text("")  # hides the one that comes along
    (folder / "My Role.md").write_text("x")
    (folder / "full.md").write_bytes(b"x" * MAX_ROLE_BYTES)
    for name, (data, _) in BROKEN.items():
        (folder / f"{name}.md").write_bytes(data)
    (folder / "folder.md").mkdir()
    (folder / "gone.md").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.md")
    said: list[str] = []
    found = list_roles(said.append)
    assert found.keys() == {*BUILTIN, "good", "full"} - {"coder"}
    assert "is no name for a role" in said.pop(0)
    expected = {
        **{name: f"{folder}/{words}" for name, (_, words) in BROKEN.items()},
        "coder": f"{folder}/coder.md: is empty",
        "folder": f"{folder}/folder.md: not a file of text",
        "gone": f"{folder}/gone.md: cannot be read: No such file or directory",
        "pipe": f"{folder}/pipe.md: not a file of text",
    }
    assert said == [expected[name] for name in sorted(expected)]
    for name, line in expected.items():
        assert refused(name) == line
