"""Small files are replaced atomically."""

import errno
import os
from pathlib import Path

import pytest

from localdflash.base.files.json_file import replace_file


def test_a_full_disk_names_the_file_and_leaves_it_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, open_file = tmp_path / "config.toml", os.open
    replace_file(file, "old")
    monkeypatch.setattr(os, "open", lambda _path, flags, mode: open_file("/dev/full", flags, mode))
    with pytest.raises(OSError, match="No space left on device") as error:
        replace_file(file, "new" * 10_000)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(file))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
