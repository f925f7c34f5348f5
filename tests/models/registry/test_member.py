"""Files from packages: complete and verified, or absent; no other files remain."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import packages, records
from localdflash.models.registry.member import plan
from localdflash.models.registry.pair_entry import FileSource
from tests.support.reports import RecordedReport
from tests.support.wheels import MEMBER, make_wheel, package_of, pip_settings, set_pip, sha256_of, wanted

DATA = os.urandom(1 << 20)
OTHER = DATA[::-1]


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder where pip finds wheels."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    set_pip(monkeypatch, pip_settings(tmp_path / "links"))
    return tmp_path / "links"


@pytest.fixture
def wheel(links: Path) -> Path:
    return make_wheel(links, {MEMBER: DATA, "made_up/__init__.py": b"raise RuntimeError('imported')"})


@pytest.fixture
def member(wheel: Path) -> FileSource:
    source = wanted(wheel, DATA)
    source.path.parent.mkdir(parents=True)
    return source


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that runs pip."""

    def run(*_: object) -> None:
        pytest.fail("pip was run")

    monkeypatch.setattr(packages, "fetch", run)


def beside(member: FileSource) -> list[str]:
    return sorted(entry.name for entry in member.path.parent.iterdir())


DONE = [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


def test_member_is_stored_with_its_record_and_the_wheel_deleted(member: FileSource) -> None:
    log = RecordedReport()
    record = plan(member).fetch(log)
    assert member.path.read_bytes() == DATA
    assert (record.repository, record.revision, record.sha256) == ("made-up", "1.0", sha256_of(DATA))
    assert records.current(member.path) == record == member.installed_record()
    assert beside(member) == DONE
    name = f"made-up==1.0/{MEMBER}"
    assert log.lines == ["downloading made-up==1.0", "checking made-up==1.0", f"unpacking {name}", f"checking {name}"]


# Installed packages


def test_installed_package_is_used_without_import(
    member: FileSource, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: None
) -> None:
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    installed, log = tmp_path / "site" / MEMBER, RecordedReport()
    plan(member).fetch(log)
    assert (member.path.read_bytes(), beside(member)) == (DATA, DONE)
    assert f"made-up==1.0/{MEMBER}: taken from {installed.parent}" in log.lines
    assert installed.read_bytes() == DATA
    assert "made_up" not in sys.modules


# Existing files


def test_existing_file_is_not_downloaded_again(member: FileSource, no_pip: None, tmp_path: Path) -> None:
    member.path.write_bytes(DATA)  # a manual copy is verified in place
    plan(member).fetch(RecordedReport())
    assert member.installed_record()
    log = RecordedReport()
    plan(member).fetch(log)
    assert log.lines == []


@pytest.mark.parametrize("is_complete", [True, False])
def test_leftovers_of_a_killed_pip(
    is_complete: bool, member: FileSource, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = member.path.with_name(".x.gguf.dead.pip")
    left.mkdir()
    (left / wheel.name).write_bytes(wheel.read_bytes() if is_complete else wheel.read_bytes()[:-7])
    if is_complete:
        monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    plan(member).fetch(RecordedReport())
    assert (member.path.read_bytes(), beside(member)) == (DATA, DONE)


# Bad input


def refused(member: FileSource, kind: type[LocaldflashError] = ModelError) -> str:
    """Return the one-line error; assert that no partial file remains."""
    with pytest.raises(LocaldflashError) as caught:
        plan(member).fetch(RecordedReport())
    assert type(caught.value) is kind
    assert not [name for name in beside(member) if name.endswith((".gguf", ".partial", ".pip"))]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_wheel_with_wrong_hash_is_refused(member: FileSource, links: Path) -> None:
    make_wheel(links, {MEMBER: OTHER})
    message = refused(member)
    package = plan(member).package
    assert f"expected {package.sha256} ({package.size} bytes)" in message
    assert f"set aside as {member.path}.mismatch and never loaded" in message
    make_wheel(links, {MEMBER: DATA, "made_up/__init__.py": b"raise RuntimeError('imported')"})


def test_member_with_wrong_hash_is_refused(member: FileSource, links: Path) -> None:
    other = make_wheel(links, {MEMBER: DATA * 2})
    member = replace(member, package=package_of(other))
    assert f"expected {member.sha256} ({len(DATA)} bytes)" in refused(member)


def test_the_disk_is_full_while_it_is_unpacked(member: FileSource, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ZipFile.open

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ZipFile, "open", full)
    message = refused(member, LocaldflashError)
    assert (
        message
        == "made-up==1.0: the disk is full (No space left on device), the wheel is kept; free some space and pull again"
    )
    assert sha256_of(plan(member).wheel.read_bytes()) == plan(member).package.sha256
    monkeypatch.setattr(ZipFile, "open", real)
    monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    plan(member).fetch(RecordedReport())
    assert beside(member) == DONE
