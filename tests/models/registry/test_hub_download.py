"""Downloads: complete and verified, or not there."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import download, records
from localdflash.models.registry.download import FileRequest, fetch, plan
from tests.support.fake_hub import COMMIT, FakeHub, File, hub_for_tests, in_hub_cache
from tests.support.reports import RecordedReport

DATA = bytes(range(256)) * 1024
OTHER = DATA[::-1]
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_tests(tmp_path, monkeypatch) as running:
        running.files["o/n/x.gguf"] = File(DATA)
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "models" / "o" / "n" / "x.gguf"


def wanted(
    path: Path, revision: str | None = None, sha256: str | None = None, size: int | None = None, file: str = "x.gguf"
) -> FileRequest:
    return FileRequest("o/n", file, revision, sha256, size, path)


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_file_arrives_with_its_record(server: FakeHub, path: Path) -> None:
    told = RecordedReport()
    record = fetch(plan(wanted(path)), told)
    assert path.read_bytes() == DATA
    assert (record.sha256, record.size, record.revision, record.asked) == (SHA256, len(DATA), COMMIT, "main")
    assert records.current(path) == record
    assert beside(path) == [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]
    assert told.lines == ["downloading o/n/x.gguf", "checking o/n/x.gguf"]


@pytest.mark.parametrize("change", ["touch", "exchange", "grow", "other revision", "other pin", "bad record"])
def test_what_changed_is_not_the_verified_file(change: str, server: FakeHub, path: Path) -> None:
    fetch(plan(wanted(path)), RecordedReport())
    want = wanted(path)
    match change:
        case "touch":
            os.utime(path, ns=(1, 1))
        case "exchange":
            stat = path.stat()
            (path.parent / "new").write_bytes(OTHER)
            os.utime(path.parent / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
            (path.parent / "new").replace(path)
        case "grow":
            path.write_bytes(DATA + b"x")
        case "other revision":
            want = wanted(path, "v2")
        case "other pin":
            want = wanted(path, sha256="0" * 64)
        case _:
            records.record_path(path).write_text("{}")
    assert want.installed_record() is None


def test_a_small_file_is_verified_by_git_s_hash(server: FakeHub, path: Path) -> None:
    server.files["o/n/config.json"] = File(b'{"a": 1}', large=False)
    config = path.with_name("config.json")
    fetch(plan(wanted(config, file="config.json")), RecordedReport())
    assert config.read_bytes() == b'{"a": 1}'
    server.files["o/n/config.json"] = File(b'{"a": 1}', large=False, digest="0" * 40)
    config.unlink()
    with pytest.raises(ModelError, match=r"git sha1 [0-9a-f]{40}"):
        fetch(plan(wanted(config, file="config.json")), RecordedReport())
    assert not config.exists()


# Other bytes than promised


def refused(want: FileRequest) -> str:
    with pytest.raises(ModelError) as caught:
        fetch(plan(want), RecordedReport())
    assert not want.path.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_hash_sets_the_file_aside_and_names_both(server: FakeHub, path: Path) -> None:
    server.files["o/n/x.gguf"] = File(OTHER, digest=SHA256)
    said = refused(wanted(path))
    aside = path.with_name("x.gguf.mismatch")
    assert SHA256 in said
    assert hashlib.sha256(OTHER).hexdigest() in said
    assert f"set aside as {aside} and never loaded" in said
    assert aside.read_bytes() == OTHER
    assert not list(path.parent.glob(".*.partial"))
    assert records.read(path) is None
    server.files["o/n/x.gguf"] = File(DATA)
    fetch(plan(wanted(path)), RecordedReport())
    assert path.read_bytes() == DATA


def test_a_pin_that_the_hub_contradicts_downloads_nothing(server: FakeHub, path: Path) -> None:
    assert f"the hub has sha256 {SHA256} at {COMMIT}, but {'0' * 64} is pinned" in refused(
        wanted(path, sha256="0" * 64)
    )
    assert f"the hub has {len(DATA)} bytes, but 7 are pinned" in refused(wanted(path, size=7))
    assert server.downloads("o/n/x.gguf") == []


# Files that are there already


def test_a_newer_revision_replaces_the_file_only_when_complete(server: FakeHub, path: Path) -> None:
    fetch(plan(wanted(path)), RecordedReport())
    server.files["o/n/x.gguf"] = File(OTHER, commit="1" * 40, stop_after=0)
    with pytest.raises(LocaldflashError):
        fetch(plan(wanted(path, "v2")), RecordedReport())
    assert path.read_bytes() == DATA
    assert records.current(path)
    server.files["o/n/x.gguf"] = File(OTHER, commit="1" * 40)
    record = fetch(plan(wanted(path, "v2")), RecordedReport())
    assert path.read_bytes() == OTHER
    assert (record.revision, record.asked) == ("1" * 40, "v2")
    assert beside(path) == [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]


# The cache of other programs


def test_the_hub_s_cache_is_linked_not_downloaded(server: FakeHub, path: Path, tmp_path: Path) -> None:
    blob = in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, commit="2" * 40)
    told = RecordedReport()
    fetch(plan(wanted(path)), told)
    assert path.stat().st_ino == blob.stat().st_ino
    assert server.downloads("o/n/x.gguf") == []
    assert f"o/n/x.gguf: taken from {blob.parent}" in told.lines


# Disk


def test_too_little_space_is_said_before_the_first_byte(
    server: FakeHub, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files["o/n/x.gguf"].size = 5 * 10**9
    free = shutil.disk_usage(tmp_path)._replace(free=2 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: free)
    job = plan(wanted(path))
    with pytest.raises(LocaldflashError, match=r"needs 5\.00 GB, 2\.00 GB are free in .*models"):
        download.check_space(job.bytes_needed(), tmp_path / "models")
    job.partial.parent.mkdir(parents=True)
    with job.partial.open("wb") as stream:
        stream.truncate(4 * 10**9)  # a hole: what is there already is not needed again
    download.check_space(job.bytes_needed(), tmp_path / "models")
