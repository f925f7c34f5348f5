"""Download the sources of the supported llama-cpp-python with pip, check their hash, and unpack them once.

Only the standard library is used.
"""

import hashlib
import shlex
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.3.36"
SDIST = f"llama_cpp_python-{VERSION}"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be downloaded
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_NUMBER=0",
    f"-DLLAMA_BUILD_COMMIT={SDIST}",
)


class PeerError(RuntimeError):
    """llama.cpp cannot be fetched or built, does not start or does not answer."""


def llama_source(folder: Path) -> Path:
    """Return the source tree of llama.cpp in `folder`; download it if it is missing."""
    return _unpack(_download(folder)) / "vendor" / "llama.cpp"


def _download(folder: Path) -> Path:
    archive = folder / f"{SDIST}.tar.gz"
    if not archive.is_file():
        requirement = f"llama-cpp-python=={VERSION}"
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python")
        run(*pip, "--dest", str(folder), requirement)
    with archive.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SDIST_SHA256:
        raise PeerError(f"{archive}: sha256 is {found}, expected {SDIST_SHA256}; delete the file and try again")
    return archive


def _unpack(archive: Path) -> Path:
    source = archive.with_name(SDIST)
    if source.is_dir():
        return source
    # renamed at the end, so that an interrupted run leaves no half of a source tree
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch, tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
        (Path(scratch) / SDIST).rename(source)
    return source


def run(*command: str) -> None:
    """Run a command with its output on stderr; PeerError if it is not installed or fails."""
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except FileNotFoundError:
        raise PeerError(f"{command[0]} is not installed; llama.cpp needs it to be built") from None
    except subprocess.CalledProcessError as error:
        raise PeerError(f"{shlex.join(command)} failed with exit code {error.returncode}") from None
