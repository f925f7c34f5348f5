import os
import stat
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.base.files import paths

FOLDERS = {
    "config": paths.config_folder,
    "data": paths.data_folder,
    "cache": paths.cache_folder,
    "runtime": paths.runtime_folder,
}


def test_home_moves_every_folder(home: Path) -> None:
    assert [folder() for folder in FOLDERS.values()] == [home / kind for kind in FOLDERS]
    assert not home.exists()


@pytest.mark.parametrize("value", ["flash", "~nobody-has-this-name/flash"])
def test_relative_home_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALDFLASH_HOME", value)
    with pytest.raises(UsageError, match="absolute path"):
        paths.config_folder()


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.skipif(os.name != "posix", reason="XDG folders")
def test_without_home_the_platform_decides(value: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCALDFLASH_HOME")
    if value is not None:
        monkeypatch.setenv("LOCALDFLASH_HOME", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CONFIG", "DATA", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "RUNTIME"))
    for kind, folder in FOLDERS.items():
        assert folder().is_relative_to(tmp_path)
        assert "localdflash" in folder().parts, kind
    assert len({folder() for folder in FOLDERS.values()}) == 4


def test_private_creation(tmp_path: Path) -> None:
    old_mask = os.umask(0)
    try:
        created = paths.create_private(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(old_mask)
    for folder in (created, created.parent, created.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert paths.create_private(created) == created
