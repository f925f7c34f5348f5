"""A project's own instructions: which file, who has allowed it, what it may be."""

from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat import project


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top" / ".git").mkdir(parents=True)
    (tmp_path / "top" / "part").mkdir()
    return tmp_path / "top"


def test_the_nearest_file_up_to_the_top_of_the_project(top: Path) -> None:
    (top.parent / "AGENTS.md").write_text("not of this project")
    assert project.find_project_file(top / "part") is None
    (top / "AGENTS.md").write_text("of all")
    found = project.find_project_file(top / "part")
    assert found
    assert found.path == top / "AGENTS.md"
    (top / "part" / "AGENTS.md").write_text("of a part")
    nearest = project.find_project_file(top / "part")
    assert nearest
    assert nearest.text().endswith("of a part")


def test_what_was_decided_is_kept_for_this_file(top: Path, home: Path) -> None:
    (top / "AGENTS.md").write_text("one")
    (top / "part" / "AGENTS.md").write_text("two")
    for folder, allowed in ((top, True), (top / "part", False)):
        found = project.find_project_file(folder)
        assert found
        assert found.allowed is None
        project.remember_decision(found, allowed)
    kept = [project.find_project_file(folder) for folder in (top, top / "part")]
    assert [one and one.allowed for one in kept] == [True, False]
    (file,) = home.rglob("projects.json")
    assert file.stat().st_mode & 0o077 == 0
    file.write_text('{"x": ')
    assert [one and one.allowed for one in [project.find_project_file(top)]] == [None]


@pytest.mark.parametrize(("data", "told"), [(b"x" * 40_000, "larger than 32 KiB"), (b"a\xff", "not UTF-8")])
def test_what_cannot_go_along(data: bytes, told: str, top: Path) -> None:
    (top / "AGENTS.md").write_bytes(data)
    found = project.find_project_file(top)
    assert found
    with pytest.raises(UsageError, match=told):
        found.text()
