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

LOOK = 0.1  # seconds between two looks at how far pip is
SAID = "pip.log"
_QUIET = ("-vv", "--no-color", "--progress-bar", "off", "--no-input", "--disable-pip-version-check")
_FULL = re.compile(r"\[Errno (?:27|28|122)\] ([\w ]+)")
_REFUSED = re.compile(r"\b(401|403|407) (?:Client Error|Proxy)|HTTP error (401|403|407)")
_UNREACHABLE = re.compile(r"Could not fetch URL|HTTP error 5\d\d|connection broken|Read timed out|Connection aborted")
_REASON = re.compile(r"\[Errno -?\d+\] ([\w ]+)|([45]\d\d (?:Client|Server) Error: [\w ]+?) for|Caused by (\w+)\(")
_OTHER_BYTES = ("DO NOT MATCH THE HASHES", "is invalid.", "BadZipFile", "IncompleteRead", "not enough bytes")


def installed(package: Package, member: str) -> Path | None:
    """Return the file in an installed package of any version, unverified; None if it is not installed."""
    try:
        path = Path(str(distribution(package.name).locate_file(member)))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def check_can_fetch(package: Package) -> None:
    """Raise an error if pip is missing or HF_HUB_OFFLINE forbids downloads."""
    name = package.requirement
    if hub.offline():
        raise Unreachable(f"{name} is not here, and HF_HUB_OFFLINE forbids to fetch it; unset it to download")
    if find_spec("pip") is None:
        raise LocaldflashError(
            f"{name}: {sys.executable} has no pip to fetch it: run `{sys.executable} -m ensurepip`, or install {name} "
            "by other means (a pull takes the file from there), then pull again"
        )


def fetch(package: Package, folder: Path, progress: Progress) -> Path:
    """Download the package's wheel with pip into `folder`, unverified, with pip's temporary files."""
    progress(0, package.size)
    with (folder / SAID).open("wb") as said, _pip(package, folder, said.fileno()) as process:
        while process.poll() is None:
            try:
                process.wait(LOOK)
            except subprocess.TimeoutExpired:
                progress(min(_came(folder), package.size), package.size)
    wheels = list(folder.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise _failure(package, (folder / SAID).read_text(errors="replace"))
    progress(package.size, package.size)
    return wheels[0]


@contextmanager
def _pip(package: Package, folder: Path, said: int) -> "Iterator[subprocess.Popen[bytes]]":
    """Run `pip download` for the duration of the context."""
    command = [sys.executable, "-P", "-m", "pip", "download", *_QUIET, "--no-deps", "--only-binary", ":all:"]
    process = subprocess.Popen(
        [*command, "--dest", str(folder), package.requirement],
        env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)),
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _came(folder: Path) -> int:
    """Return the number of bytes that pip has downloaded into the folder."""
    sizes = [0]
    for at, _, names in os.walk(folder):  # it passes over folders that are gone again
        for name in names:
            with suppress(OSError):
                sizes.append(Path(at, name).stat().st_size)
    return max(sizes)


def _failure(package: Package, said: str) -> LocaldflashError:
    """Return the error for pip's output."""
    name = package.requirement
    if full := _FULL.search(said):
        return LocaldflashError(f"{name}: the disk takes no more ({full[1]}); make room and pull again")
    if any(words in said for words in _OTHER_BYTES):
        return ModelError(
            f"{name}: what came is cut, or is not the wheel that was published; pull again, and where that does not "
            "help, see which index `pip config list` names"
        )
    if status := _REFUSED.search(said):
        return ModelError(
            f"{name}: pip's index refuses ({status[1] or status[2]}): where it wants a name and password, give them to "
            "pip in its index-url or in ~/.netrc, then pull again"
        )
    if _UNREACHABLE.search(said):
        reason = next((part for found in reversed(_REASON.findall(said)) for part in found if part), "no answer")
        return Unreachable(
            f"{name}: pip cannot reach its index ({reason}); check the network and the proxy, then pull again"
        )
    if "No matching distribution" in said:
        return ModelError(f"{name}: pip finds no such wheel where it looks; see `pip config list`, then pull again")
    lines = [line.strip() for line in said.splitlines() if "error" in line.lower()] or ["without a word"]
    return LocaldflashError(f"{name}: pip failed: {lines[-1].removeprefix('ERROR: ')[:300]}")
