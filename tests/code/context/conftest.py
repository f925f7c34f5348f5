"""Workspaces of a few files, and waiting for their watchers."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from localdflash.code.context.index import Workspace

PATIENCE = 20.0  # seconds


@dataclass
class Opened:
    """A running workspace and its warnings."""

    root: Path
    workspace: Workspace
    warnings: list[str] = field(default_factory=list)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def paths(self, name: str) -> list[str]:
        """Return the files that define a name."""
        return [found.path for found in self.workspace.find(name, "python")]

    def comes(self, name: str, *paths: str) -> bool:
        """Wait until exactly these files define a name."""
        return until(lambda: self.paths(name) == [*paths])


Opens = Callable[..., Opened]


def until(condition: Callable[[], bool]) -> bool:
    """Poll a condition that a watcher's thread makes true."""
    end = time.monotonic() + PATIENCE
    while not (done := condition()) and time.monotonic() < end:
        time.sleep(0.005)
    return done


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def open_workspace(root: Path) -> Iterator[Opens]:
    """Open a workspace on files by name and wait until it is indexed."""
    opened: list[Workspace] = []

    def start(files: dict[str, str] | None = None, roots: list[Path] | None = None) -> Opened:
        warnings: list[str] = []
        workspace = Workspace(roots or [root], warnings.append)
        opened.append(workspace)
        result = Opened(root, workspace, warnings)
        for name, text in (files or {}).items():
            result.write(name, text)
        workspace.start()
        assert workspace.settled(PATIENCE)
        return result

    yield start
    for workspace in opened:
        workspace.close()
