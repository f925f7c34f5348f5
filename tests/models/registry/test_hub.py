"""Answers and errors of the hub: each error is one line with a remedy."""

import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import hub
from tests.support.fake_hub import COMMIT, FakeHub, File, hub_for_tests

DATA = bytes(range(256)) * 1024
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with hub_for_tests(tmp_path, monkeypatch) as running:
        running.files["o/n/x.gguf"] = File(DATA)
        yield running


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


@pytest.fixture
def chunked(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", 1000)
    server.files["o/n/x.gguf"].chunks = "a" * 64
    return server


def test_a_large_file_comes_from_the_chunk_store(
    chunked: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils._xet_progress_reporting import XetDownloadProgressReporter

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
    assert not chunked.downloads("o/n/x.gguf")
