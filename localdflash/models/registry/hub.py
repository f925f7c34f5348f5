"""Files on the Hugging Face hub: metadata and resumable downloads. Every failure is a one-line error.

huggingface_hub's own download restarts after a killed process, so its lower-level `http_get` is called, which resumes.
"""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from localdflash.base.errors import LocaldflashError, ModelError, UsageError

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

MAIN = "main"
CHUNK = 1 << 16  # bytes written at a time; a dropped connection or a killed process loses at most this many
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MAX_FILES = 10_000  # maximum number of files in a repository
TIMEOUT = 10.0  # seconds without an answer
DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")

Progress = Callable[[int, int], None]  # bytes done, total bytes


class Unreachable(LocaldflashError):
    """The hub is unreachable: no network, offline mode, or a server error (exit code 1)."""


@dataclass(frozen=True)
class Remote:
    """File at a commit. `digest` is the SHA-256 of an LFS file (64 digits) or the git SHA-1 of a small file (40)."""

    repository: str
    file: str
    commit: str
    digest: str
    size: int  # bytes

    @property
    def name(self) -> str:
        """Return the file with its repository."""
        return f"{self.repository}/{self.file}"


def offline_variable() -> str:
    """Return the name of the environment variable that forbids network access; "" if none does."""
    if not _library().constants.is_offline_mode():
        return ""
    return "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"


def look_up(repository: str, file: str, revision: str | None) -> Remote:
    """Return the hub's metadata of a file at a revision (default: the main branch)."""
    api = _library()
    name = f"{repository}/{file}"
    with _one_line_errors(repository, file, revision):
        url = api.hf_hub_url(repository, file, revision=revision)
        metadata = api.get_hf_file_metadata(url, library_name="localdflash")
    digest = (metadata.etag or "").lower()
    if not DIGEST.fullmatch(digest) or metadata.size is None or not metadata.commit_hash:
        raise ModelError(
            f"{name}: {api.constants.ENDPOINT} reports no commit, size or hash to verify it; check HF_ENDPOINT"
        )
    return Remote(repository, file, metadata.commit_hash, digest, metadata.size)


def list_files(repository: str, revision: str | None) -> list[str]:
    """Return the file names of a repository at a revision (default: main); raise ModelError if there are too many."""
    _library()
    from huggingface_hub import HfApi, constants

    with _one_line_errors(repository, "", revision):
        api = HfApi(endpoint=constants.ENDPOINT, library_name="localdflash")
        try:
            files = api.model_info(repository, revision=revision, timeout=TIMEOUT).siblings or []
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{constants.ENDPOINT} sent no list of files") from error
    if len(files) > MAX_FILES:
        raise ModelError(f"{repository}: more than {MAX_FILES} files; give the file, as hf:owner/name/file")
    return [str(file.rfilename) for file in files]


def find_in_cache(repository: str, file: str, revision: str | None) -> Remote | None:
    """Return the metadata of a file in the hub's cache, where blobs are named by hash; None if it is not cached."""
    cached = _library().try_to_load_from_cache(repository, file, revision=revision)
    if not isinstance(cached, str):
        return None
    blob = Path(cached).resolve()
    if not DIGEST.fullmatch(blob.name):
        return None
    return Remote(repository, file, Path(cached).parents[file.count("/")].name, blob.name, blob.stat().st_size)


def find_cached_blob(remote: Remote) -> Path | None:
    """Return the cached blob with the same digest, from any commit; None if it is not cached."""
    api = _library()
    folder = api.repo_folder_name(repo_id=remote.repository, repo_type="model")
    blob = Path(api.constants.HF_HUB_CACHE, folder, "blobs", remote.digest)
    return blob.resolve() if blob.is_file() and blob.stat().st_size == remote.size else None


def transfer(remote: Remote, partial: Path, progress: Progress) -> None:
    """Download the rest of a file into `partial`; a file above 50 GB, from the chunk store (Xet), starts anew."""
    api = _library()
    if remote.size > api.constants.MAX_HTTP_DOWNLOAD_SIZE:
        _from_chunk_store(remote, partial, progress)
        return
    url = api.hf_hub_url(remote.repository, remote.file, revision=remote.commit)
    headers = api.build_hf_headers(library_name="localdflash") | {"Accept-Encoding": "identity"}
    with _one_line_errors(remote.repository, remote.file, remote.commit), partial.open("ab") as stream:
        if stream.tell() > remote.size:
            stream.truncate(0)
        done = stream.seek(0, 2)
        api.http_get(
            url,
            stream,
            resume_size=done,
            headers=headers,
            expected_size=remote.size,
            tqdm_class=_meter(progress, remote.size),
        )


def _from_chunk_store(remote: Remote, partial: Path, progress: Progress) -> None:
    """Download a file through Xet, like `hf download`; raise ModelError if hf_xet is missing or disabled."""
    api = _library()
    url = api.hf_hub_url(remote.repository, remote.file, revision=remote.commit)
    with _one_line_errors(remote.repository, remote.file, remote.commit):
        xet_file = api.get_hf_file_metadata(url, library_name="localdflash").xet_file_data
        if xet_file is None or not api.is_xet_available():
            raise ModelError(
                f"{remote.name}: files of {remote.size} bytes need Xet; `pip install hf_xet`, unset "
                "HF_HUB_DISABLE_XET, and pull again"
            )
        try:
            api.xet_get(
                incomplete_path=partial,
                xet_file_data=xet_file,
                headers=api.build_hf_headers(library_name="localdflash"),
                expected_size=remote.size,
                tqdm_class=_meter(progress, remote.size),
            )
        except RuntimeError as error:
            raise Unreachable(f"{remote.name}: {str(error).splitlines()[0][:200]}; pull again") from error


def read_range(remote: Remote, first: int, count: int) -> bytes:
    """Read `count` bytes of a file from offset `first`; fewer at the end of the file."""
    api = _library()
    url = api.hf_hub_url(remote.repository, remote.file, revision=remote.commit)
    last = min(first + count, remote.size) - 1
    headers = api.build_hf_headers(library_name="localdflash") | {"Accept-Encoding": "identity"}
    headers["Range"] = f"bytes={first}-{last}"
    with (
        _one_line_errors(remote.repository, remote.file, remote.commit),
        api.http_stream_backoff("GET", url, headers=headers, timeout=10, retry_on_exceptions=()) as answer,
    ):
        api.hf_raise_for_status(answer)
        is_complete = last + 1 - first == remote.size  # some servers send complete files without status 206
        data = bytes(answer.read()) if answer.status_code == 206 or is_complete else b""
    if len(data) != last + 1 - first:
        raise Unreachable(f"{remote.name}: {api.constants.ENDPOINT} does not serve ranges of files; pull the file")
    return data


def _meter(progress: Progress, size: int) -> Any:
    """Return an adapter from `Progress` to the progress bar that http_get expects."""

    class Meter:
        def __init__(self, *, initial: int = 0, **_others: object) -> None:
            self.done = initial
            progress(self.done, size)

        def update(self, count: int) -> None:
            self.done += count
            progress(self.done, size)

        def update_transfer(self, count: int) -> None:
            """Ignore chunks that are not written yet."""

        def set_postfix_str(self, *_: object, **_others: object) -> None:
            pass

        set_transfer_postfix_str = set_postfix_str

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Meter


def _library() -> Any:
    """Import huggingface_hub on first use, without its output and telemetry, and return the parts used here."""
    try:
        from huggingface_hub import constants, file_download
    except ValueError as error:  # it converts environment variables when it is imported
        raise UsageError(f"huggingface_hub cannot read one of its environment variables (HF_...): {error}") from error

    constants.HF_HUB_DISABLE_TELEMETRY = True
    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    return file_download


@contextmanager
def _one_line_errors(repository: str, file: str, revision: str | None) -> Iterator[None]:
    """Convert exceptions of huggingface_hub into one-line errors with a remedy; Unreachable if offline."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    name = f"{repository}/{file}".rstrip("/")  # the whole repository has no file
    try:
        if variable := offline_variable():
            raise Unreachable(f"{name}: not downloaded, and {variable} forbids downloads; unset it")
        yield
    except HfHubHTTPError as error:
        raise _refusal(error, repository, file, revision) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise Unreachable(
            f"{name}: cannot reach {constants.ENDPOINT} ({reason}); check the network and the proxy, then pull again"
        ) from error
    except ImportError as error:
        raise Unreachable(f"{name}: a SOCKS proxy needs the package socksio; run `pip install socksio`") from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:  # from the ssl module
            raise Unreachable(f"{name}: no such certificate file; check SSL_CERT_FILE and SSL_CERT_DIR") from error
        if error.errno in DISK_FULL:
            raise LocaldflashError(
                f"{name}: the disk is full ({error.strerror}), the partial file is kept; free some space and pull again"
            ) from error
        if error.errno is not None:
            raise
        raise Unreachable(f"{name}: the download was interrupted, the partial file is kept; pull again") from error
    except ValueError as error:
        raise Unreachable(f"{name}: {error}; check HF_ENDPOINT and the proxy settings") from error


def _refusal(error: "HfHubHTTPError", repository: str, file: str, revision: str | None) -> LocaldflashError:
    """Return the error for an HTTP error response of the hub."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"
    match error:
        case errors.GatedRepoError():
            return ModelError(
                f"{repository}: its terms must be accepted first; accept them at {page}, log in with `hf auth login`, "
                "then pull again"
            )
        case errors.RevisionNotFoundError():
            return ModelError(f"{repository} has no revision {revision!r}; see {page}/commits/{MAIN}")
        case errors.RemoteEntryNotFoundError():
            return ModelError(f"{repository} has no file {file!r} at {revision or MAIN}; see {page}/tree/{MAIN}")
        case errors.RepositoryNotFoundError():
            return ModelError(
                f"{repository}: missing or private at {constants.ENDPOINT}; check the name, or run `hf auth login`"
            )
    status = error.response.status_code
    if status in (401, 403):
        return ModelError(
            f"{repository}: {constants.ENDPOINT} answered {status}; log in with `hf auth login`, or check HF_TOKEN"
        )
    name = f"{repository}/{file}".rstrip("/")
    return Unreachable(f"{name}: {constants.ENDPOINT} answered {status}; try again later")
