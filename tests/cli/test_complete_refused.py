"""Files that `complete` puts into no prompt: those of secrets, by every name, and those that our own rules name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SECRET = "its name is one of files with secrets"
NAMES = (".env", ".ssh/config", "#.env#")


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_secrets(name: str, tmp_path: Path, fails: Callable[..., str]) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("TOKEN=hunter2\n")
    assert fails(2, "complete", f"{path}:1:8", "--no-daemon") == f"{path}: never put into a prompt: {SECRET}"


def test_a_link_to_a_file_of_secrets(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / ".env").write_text("TOKEN=hunter2\n")
    (tmp_path / "settings.py").symlink_to(".env")
    assert fails(2, "complete", f"{tmp_path / 'settings.py'}:1:8").endswith(SECRET)


@pytest.mark.parametrize("repository", [True, False])
def test_a_file_that_our_own_rules_name(repository: bool, tmp_path: Path, fails: Callable[..., str]) -> None:
    if repository:
        (tmp_path / ".git").mkdir()
    (tmp_path / ".localdflashignore").write_text("mine.py\n")
    (tmp_path / "mine.py").write_text("x = 1\n")
    assert fails(2, "complete", f"{tmp_path / 'mine.py'}:1:1").endswith(".localdflashignore names it")


def test_a_link_out_of_its_repository(tmp_path: Path, fails: Callable[..., str]) -> None:
    (tmp_path / "other.py").write_text("x = 1\n")
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "app.py").symlink_to("../other.py")
    said = fails(2, "complete", f"{tmp_path / 'project' / 'app.py'}:1:1")
    assert said.endswith("it is a link to a file outside of the project")


def test_a_link_in_no_repository(tmp_path: Path, complete: Callable[..., Any]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "app.py").write_text("x = ")
    (tmp_path / "app.py").symlink_to("folder/app.py")
    assert complete(f"{tmp_path / 'app.py'}:1:5", "--max-tokens", 2).code == 0


def test_what_git_ignores_is_completed_by_hand_and_alone(
    tmp_path: Path, complete: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("local.py\n")
    (tmp_path / "local.py").write_text("x = ")
    monkeypatch.setattr(
        "localdflash.cli.complete_command.context_of", lambda *_: pytest.fail("it was given other code")
    )
    assert complete(f"{tmp_path / 'local.py'}:1:5", "--max-tokens", 2, "--explain").code == 0
