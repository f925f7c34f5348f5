"""Files that `complete` refuses: secrets, files in .localdflashignore, links out of the project."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("name", [".env", ".ssh/config", "#.env#"])
def test_secret_file_is_refused_under_every_name(name: str, tmp_path: Path, fails: Callable[..., str]) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("TOKEN=hunter2\n")
    (tmp_path / "settings.py").symlink_to(name)
    for place in (path, tmp_path / "settings.py"):
        message = fails(2, "complete", f"{place}:1:8", "--no-daemon")
        assert message.startswith(f"{place}: ")
        assert "secrets" in message


@pytest.mark.parametrize("repository", [True, False])
def test_file_in_localdflashignore_is_refused(repository: bool, tmp_path: Path, fails: Callable[..., str]) -> None:
    if repository:
        (tmp_path / ".git").mkdir()
    (tmp_path / ".localdflashignore").write_text("mine.py\n")
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert ".localdflashignore" in fails(2, "complete", f"{tmp_path / 'mine.py'}:1:1")


def test_link_out_of_the_repository_is_refused(
    tmp_path: Path, fails: Callable[..., str], complete: Callable[..., Any]
) -> None:
    (tmp_path / "other.py").write_text("x = ")
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "app.py").symlink_to("../other.py")
    assert "outside of the project" in fails(2, "complete", f"{tmp_path / 'project' / 'app.py'}:1:1")
    (tmp_path / "app.py").symlink_to("other.py")  # in no repository
    assert complete(f"{tmp_path / 'app.py'}:1:5", "--max-tokens", 2).code == 0


def test_gitignored_file_is_completed_without_other_code(
    tmp_path: Path, complete: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("local.py\n")
    (tmp_path / "local.py").write_text("x = ")
    monkeypatch.setattr(
        "localdflash.cli.complete_command.context_of", lambda *_: pytest.fail("other code was added to the prompt")
    )
    assert complete(f"{tmp_path / 'local.py'}:1:5", "--max-tokens", 2, "--explain").code == 0
