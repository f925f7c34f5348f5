"""Files out of packages: complete and verified, or not there; nothing else stays."""

import os
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import packages, records
from localdflash.models.registry.member import MemberRequest, fetch, plan
from tests.support.reports import RecordedReport
from tests.support.wheels import MEMBER, make_wheel, package_of, pip_settings, set_pip, sha256_of, wanted

DATA = os.urandom(1 << 20)
OTHER = DATA[::-1]


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where pip looks for wheels."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    set_pip(monkeypatch, pip_settings(tmp_path / "links"))
    return tmp_path / "links"


@pytest.fixture
def wheel(links: Path) -> Path:
    return make_wheel(links, {MEMBER: DATA, "made_up/__init__.py": b"raise RuntimeError('imported')"})


@pytest.fixture
def want(wheel: Path, tmp_path: Path) -> MemberRequest:
    (tmp_path / "models").mkdir()
    return wanted(wheel, DATA, tmp_path / "models")


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that runs pip."""

    def run(*_: object) -> None:
        pytest.fail("pip was run")

    monkeypatch.setattr(packages, "fetch", run)


def beside(want: MemberRequest) -> list[str]:
    return sorted(entry.name for entry in want.path.parent.iterdir())


DONE = [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


def test_a_member_arrives_with_its_record_and_the_wheel_goes(want: MemberRequest) -> None:
    told = RecordedReport()
    record = fetch(plan(want), told)
    assert want.path.read_bytes() == DATA
    assert (record.repository, record.revision, record.sha256) == ("made-up", "1.0", sha256_of(DATA))
    assert records.current(want.path) == record == want.installed_record()
    assert beside(want) == DONE
    name = f"made-up==1.0/{MEMBER}"
    assert told.lines == ["downloading made-up==1.0", "checking made-up==1.0", f"unpacking {name}", f"checking {name}"]


# Installed packages


def test_an_installed_package_is_taken_and_not_imported(
    want: MemberRequest, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: None
) -> None:
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    there, told = tmp_path / "site" / MEMBER, RecordedReport()
    fetch(plan(want), told)
    assert (want.path.read_bytes(), beside(want)) == (DATA, DONE)
    assert f"made-up==1.0/{MEMBER}: taken from {there.parent}" in told.lines
    assert there.read_bytes() == DATA
    assert "made_up" not in sys.modules


# What is here already


def test_what_is_here_is_asked_for_no_more(want: MemberRequest, no_pip: None, tmp_path: Path) -> None:
    want.path.write_bytes(DATA)  # by hand: verified where it is
    fetch(plan(want), RecordedReport())
    assert want.installed_record()
    told = RecordedReport()
    fetch(plan(want), told)
    assert told.lines == []


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_pip_that_died_left(
    whole: bool, want: MemberRequest, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = want.path.with_name(".x.gguf.dead.pip")
    left.mkdir()
    (left / wheel.name).write_bytes(wheel.read_bytes() if whole else wheel.read_bytes()[:-7])
    if whole:
        monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    fetch(plan(want), RecordedReport())
    assert (want.path.read_bytes(), beside(want)) == (DATA, DONE)


# Bad input


def refused(want: MemberRequest, kind: type[LocaldflashError] = ModelError) -> str:
    """The one line of an error; nothing half is left."""
    with pytest.raises(LocaldflashError) as caught:
        fetch(plan(want), RecordedReport())
    assert type(caught.value) is kind
    assert not [name for name in beside(want) if name.endswith((".gguf", ".partial", ".pip"))]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wheel_with_other_bytes(want: MemberRequest, links: Path) -> None:
    make_wheel(links, {MEMBER: OTHER})
    said = refused(want)
    assert f"expected {want.package.sha256} ({want.package.size} bytes)" in said
    assert f"set aside as {want.path}.mismatch and never loaded" in said
    make_wheel(links, {MEMBER: DATA, "made_up/__init__.py": b"raise RuntimeError('imported')"})


def test_a_member_with_other_bytes(want: MemberRequest, links: Path) -> None:
    other = make_wheel(links, {MEMBER: DATA * 2})
    want = MemberRequest(package_of(other), MEMBER, want.sha256, want.size, want.path)
    assert f"expected {want.sha256} ({len(DATA)} bytes)" in refused(want)


def test_the_disk_is_full_while_it_is_unpacked(want: MemberRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ZipFile.open

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ZipFile, "open", full)
    said = refused(want, LocaldflashError)
    assert (
        said
        == "made-up==1.0: the disk is full (No space left on device), the wheel is kept; free some space and pull again"
    )
    assert sha256_of(want.wheel.read_bytes()) == want.package.sha256
    monkeypatch.setattr(ZipFile, "open", real)
    monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    fetch(plan(want), RecordedReport())
    assert beside(want) == DONE
