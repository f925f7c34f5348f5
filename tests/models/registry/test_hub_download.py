"""The hub: answers, errors of one line with a remedy, and downloads that are complete and verified, or not there."""

import errno
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import download, hub, records
from localdflash.models.registry.download import plan
from localdflash.models.registry.pair_entry import FileSource
from tests.support.fake_hub import COMMIT, FakeHub, File, hub_for_tests, in_hub_cache
from tests.support.reports import RecordedReport

DATA = bytes(range(256)) * 1024
OTHER = DATA[::-1]
SHA256 = hashlib.sha256(DATA).hexdigest()
SOURCE = FileSource("o/n", "x.gguf")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_tests(tmp_path, monkeypatch) as running:
        running.files["o/n/x.gguf"] = File(DATA)
        yield running


@pytest.fixture
def path() -> Path:
    return SOURCE.path


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def test_a_file_arrives_with_its_record(server: FakeHub, path: Path) -> None:
    told = RecordedReport()
    record = plan(SOURCE).fetch(told)
    assert path.read_bytes() == DATA
    assert (record.sha256, record.size, record.revision, record.asked) == (SHA256, len(DATA), COMMIT, "main")
    assert records.current(path) == record
    assert beside(path) == [".x.gguf.lock", ".x.gguf.verified", "x.gguf"]
    assert told.lines == ["downloading o/n/x.gguf", "checking o/n/x.gguf"]


@pytest.mark.parametrize("change", ["touch", "exchange", "grow", "other revision", "other pin", "bad record"])
def test_what_changed_is_not_the_verified_file(change: str, server: FakeHub, path: Path) -> None:
    plan(SOURCE).fetch(RecordedReport())
    want = SOURCE
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
            want = replace(SOURCE, revision="v2")
        case "other pin":
            want = replace(SOURCE, sha256="0" * 64)
        case _:
            records.record_path(path).write_text("{}")
    assert want.installed_record() is None


def test_a_small_file_is_verified_by_git_s_hash(server: FakeHub, path: Path) -> None:
    server.files["o/n/config.json"] = File(b'{"a": 1}', large=False)
    config = path.with_name("config.json")
    plan(replace(SOURCE, file="config.json")).fetch(RecordedReport())
    assert config.read_bytes() == b'{"a": 1}'
    server.files["o/n/config.json"] = File(b'{"a": 1}', large=False, digest="0" * 40)
    config.unlink()
    with pytest.raises(ModelError, match=r"git sha1 [0-9a-f]{40}"):
        plan(replace(SOURCE, file="config.json")).fetch(RecordedReport())
    assert not config.exists()


# Other bytes than promised


def refused(want: FileSource) -> str:
    with pytest.raises(ModelError) as caught:
        plan(want).fetch(RecordedReport())
    assert not want.path.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_hash_sets_the_file_aside_and_names_both(server: FakeHub, path: Path) -> None:
    server.files["o/n/x.gguf"] = File(OTHER, digest=SHA256)
    said = refused(SOURCE)
    aside = path.with_name("x.gguf.mismatch")
    assert SHA256 in said
    assert hashlib.sha256(OTHER).hexdigest() in said
    assert f"set aside as {aside} and never loaded" in said
    assert aside.read_bytes() == OTHER
    assert not list(path.parent.glob(".*.partial"))
    assert records.read(path) is None
    server.files["o/n/x.gguf"] = File(DATA)
    plan(SOURCE).fetch(RecordedReport())
    assert path.read_bytes() == DATA


def test_a_pin_that_the_hub_contradicts_downloads_nothing(server: FakeHub, path: Path) -> None:
    assert f"the hub has sha256 {SHA256} at {COMMIT}, but {'0' * 64} is pinned" in refused(
        replace(SOURCE, sha256="0" * 64)
    )
    assert f"the hub has {len(DATA)} bytes, but 7 are pinned" in refused(replace(SOURCE, size=7))
    assert server.downloads("o/n/x.gguf") == []


# Files that are there already


def test_a_newer_revision_replaces_the_file_only_when_complete(server: FakeHub, path: Path) -> None:
    plan(SOURCE).fetch(RecordedReport())
    server.files["o/n/x.gguf"] = File(OTHER, commit="1" * 40, stop_after=0)
    with pytest.raises(LocaldflashError):
        plan(replace(SOURCE, revision="v2")).fetch(RecordedReport())
    assert path.read_bytes() == DATA
    assert records.current(path)
    server.files["o/n/x.gguf"] = File(OTHER, commit="1" * 40)
    job = plan(replace(SOURCE, revision="v2"))
    assert job.bytes_needed() == len(OTHER)  # next to the old file
    record = job.fetch(RecordedReport())
    assert plan(SOURCE).bytes_needed() == 0
    records.record_path(path).unlink()
    assert plan(SOURCE).bytes_needed() == 0
    assert path.read_bytes() == OTHER
    assert (record.revision, record.asked) == ("1" * 40, "v2")
    assert beside(path) == [".x.gguf.lock", "x.gguf"]


def test_a_folder_that_was_removed_meanwhile_is_created_again(server: FakeHub, path: Path) -> None:
    path.parent.mkdir(parents=True)
    lock = os.open(path.with_name(f".{path.name}.lock"), os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def remove() -> None:
        """Do as `models rm`, which deletes the folder while it holds the lock."""
        path.with_name(f".{path.name}.lock").unlink()
        with suppress(OSError):  # the pull has already created another lock
            path.parent.rmdir()
        os.close(lock)

    class Remover(RecordedReport):
        def say(self, line: str) -> None:
            if line.startswith("waiting for another localdflash"):
                threading.Timer(0.2, remove).start()

    plan(SOURCE).fetch(Remover())
    assert path.read_bytes() == DATA


# The cache of other programs


def test_the_hub_s_cache_is_linked_not_downloaded(server: FakeHub, path: Path, tmp_path: Path) -> None:
    blob = in_hub_cache(tmp_path, "o/n/x.gguf", DATA, SHA256, commit="2" * 40)
    told = RecordedReport()
    plan(SOURCE).fetch(told)
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
    job = plan(SOURCE)
    with pytest.raises(LocaldflashError, match=r"needs 5\.00 GB, 2\.00 GB are free in .*models"):
        download.check_space(job.bytes_needed(), tmp_path / "models")
    job.partial.parent.mkdir(parents=True)
    with job.partial.open("wb") as stream:
        stream.truncate(4 * 10**9)  # a hole: what is there already is not needed again
    download.check_space(job.bytes_needed(), tmp_path / "models")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: free._replace(free=1_900_000))
    with pytest.raises(LocaldflashError, match=r"needs 2\.4 MB, 1\.9 MB are free"):
        download.check_space(2_400_000, tmp_path)


def nothing(_done: int, _total: int) -> None:
    pass


REFUSED = [
    ((404, "EntryNotFound"), "o/n has no file 'x.gguf' at main; see "),
    ((404, "RepoNotFound"), "o/n: missing or private at http://127.0.0.1"),
    ((401, "RepoNotFound"), "check the name, or run `hf auth login`"),
    ((403, "GatedRepo"), "its terms must be accepted first; accept them at http"),
]


@pytest.mark.parametrize(("error", "message"), REFUSED)
def test_refusals(error: tuple[int, str], message: str, server: FakeHub) -> None:
    server.files["o/n/x.gguf"].error = error
    with pytest.raises(ModelError, match=message) as caught:
        hub.look_up("o/n", "x.gguf", None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", [File(DATA, digest="abc"), File(DATA, digest="z" * 64), File(DATA, commit=None)])
def test_a_file_that_could_not_be_verified_is_not_fetched(file: File, server: FakeHub) -> None:
    server.files["o/n/x.gguf"] = file
    with pytest.raises(ModelError, match="reports no commit, size or hash"):
        hub.look_up("o/n", "x.gguf", None)


# Bytes


def remote() -> hub.Remote:
    return hub.Remote("o/n", "x.gguf", COMMIT, SHA256, len(DATA))


def test_a_connection_that_drops_is_taken_up_again(server: FakeHub, tmp_path: Path) -> None:
    server.files["o/n/x.gguf"].stop_after = 100_000
    hub.transfer(remote(), tmp_path / "p", nothing)
    assert (tmp_path / "p").read_bytes() == DATA
    assert server.downloads("o/n/x.gguf") == [None, "bytes=65536-", "bytes=131072-", "bytes=196608-"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_keeps_what_came(
    number: int, server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p").write_bytes(DATA[:1000])

    def full(done: int, _total: int) -> None:
        if done > 1000:
            raise OSError(number, "No space left on device")

    with pytest.raises(LocaldflashError, match=r"the disk is full .*, the partial file is kept; free some space"):
        hub.transfer(remote(), tmp_path / "p", full)
    assert DATA.startswith((tmp_path / "p").read_bytes())
    hub.transfer(remote(), tmp_path / "p", nothing)
    assert (tmp_path / "p").read_bytes() == DATA


def test_a_token_does_not_leave_the_hub(server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.transfer(remote(), tmp_path / "p", nothing)
    assert server.downloads("o/n/x.gguf") == [None]
    assert server.tokens_on_cdn == []


# Files that plain HTTP does not serve. The chunk store itself is not here: the library's own function is stood in for.


def test_a_large_file_comes_from_the_chunk_store(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 1000)
    server.files["o/n/x.gguf"].chunks = "a" * 64
    seen: list[tuple[int, int]] = []

    def stored(incomplete_path: Path, xet_file_data: Any, expected_size: int, tqdm_class: Any, **_: object) -> None:
        assert xet_file_data.file_hash == "a" * 64
        incomplete_path.write_bytes(DATA)
        report = SimpleNamespace(total_bytes_completed=0, total_transfer_bytes_completed=0, total_bytes=expected_size)
        report.total_bytes_completion_rate = report.total_transfer_bytes_completion_rate = None
        made = {"reconstruction_desc": "", "log_level": 0, "total": expected_size, "tqdm_class": tqdm_class}
        with XetDownloadProgressReporter(**made) as reporter:
            for part in (1000, expected_size):
                report.total_bytes_completed = report.total_transfer_bytes_completed = part
                reporter.update_progress(report)

    monkeypatch.setattr("huggingface_hub.file_download.xet_get", stored)
    hub.transfer(remote(), tmp_path / "p", lambda done, total: seen.append((done, total)))
    assert (tmp_path / "p").read_bytes() == DATA
    assert seen[1:] == [(1000, len(DATA)), (len(DATA), len(DATA))]
    assert not server.downloads("o/n/x.gguf")
