"""Open folder handles, and the fallback for systems without them: paths, checked for links before each step."""

import os
import stat
from pathlib import Path

import pytest

from localdflash.base.system import descriptor, open_folder
from localdflash.base.system.open_folder import OpenFolder

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture(params=["held", "by path"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "held" and os.open not in os.supports_dir_fd:
        pytest.skip("this system holds no folder open")
    monkeypatch.setattr(open_folder, "BY_PATH", request.param == "by path")
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "root" / "deep" / "file").write_text("text")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    return tmp_path / "root"


def test_no_link_is_followed(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside")
    (root / "deep" / "link").symlink_to(root.parent / "outside" / "file")
    with OpenFolder(root) as top, OpenFolder("deep", top) as deep:
        with pytest.raises(OSError, match=r"Too many levels of symbolic links|Not a directory"):
            OpenFolder("link", top)
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            deep.open("link")
        assert stat.S_ISLNK(deep.status("link").st_mode)
    with pytest.raises(OSError, match=r"Too many levels of symbolic links|Not a directory"):
        OpenFolder(root / "link")


def test_a_name_that_is_a_link_is_not_written_through(root: Path) -> None:
    (root / "new").symlink_to(root.parent / "outside" / "made")
    with OpenFolder(root) as top, pytest.raises(FileExistsError):
        top.open("new", descriptor.NEW_FILE)
    assert not (root.parent / "outside" / "made").exists()


def test_a_folder_stays_the_one_that_was_opened(root: Path, way: str) -> None:
    if way == "by path":
        pytest.skip("is what is missing there")
    with OpenFolder(root) as top, OpenFolder("deep", top) as deep:
        (root / "deep").rename(root / "moved")
        (root / "deep").symlink_to(root.parent / "outside")
        with open(deep.open("file")) as file:
            assert file.read() == "text"
