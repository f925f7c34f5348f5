"""Project instructions: which file is found, the user's decision, and invalid files."""

from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.chat import project


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top" / ".git").mkdir(parents=True)
    (tmp_path / "top" / "part").mkdir()
    return tmp_path / "top"


def test_nearest_file_within_the_project_is_found(top: Path) -> None:
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


def test_decision_is_stored_per_file(top: Path, home: Path) -> None:
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


@pytest.mark.parametrize(("data", "problem"), [(b"x" * 40_000, "larger than 32 KiB"), (b"a\xff", "not UTF-8")])
def test_invalid_project_file_is_refused(data: bytes, problem: str, top: Path) -> None:
    (top / "AGENTS.md").write_bytes(data)
    found = project.find_project_file(top)
    assert found
    with pytest.raises(UsageError, match=problem):
        found.text()
