"""Finding a Neovim: which one is used, and the error if none can be fetched."""

import stat
from pathlib import Path

import pytest

from localdflash.lab.scripts.editors import debian, fetch


def program(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'NVIM v{version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture(autouse=True)
def _nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.setattr("localdflash.lab.scripts.editors.fetch.shutil.which", _which(tmp_path / "bin"))
    monkeypatch.delenv("LOCALDFLASH_NVIM", raising=False)


def _which(folder: Path) -> object:
    return lambda name: str(found) if (found := folder / name).is_file() else None


@pytest.mark.parametrize(("version", "taken"), [("0.12.0", True), ("0.13.0-dev", True), ("0.11.9", False)])
def test_one_on_path_is_taken_where_it_is_new_enough(tmp_path: Path, version: str, taken: bool) -> None:
    there = program(tmp_path / "bin" / "nvim", version)
    assert fetch.installed(folder=tmp_path) == (there if taken else None)


def test_a_failing_apt_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("apt-get", "dpkg"):
        program(tmp_path / "bin" / tool, "").write_text("#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    monkeypatch.setattr(debian, "KEYRING", program(tmp_path / "key", ""))
    with pytest.raises(debian.CannotFetch, match="apt-get failed: E: no network"):
        fetch.neovim(folder=tmp_path)
    assert fetch.installed(folder=tmp_path) is None
