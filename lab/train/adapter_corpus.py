"""Source code that an adapter is trained on: the Python of `corpus.toml` and pinned npm packages."""

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from localdflash.base.errors import TrainingError
from localdflash.lab.train import corpus
from localdflash.models.weights.low_rank import sha256_of
from localdflash.text.syntax import language_of

ADAPTER_LIST = Path(__file__).with_name("adapter_corpus.toml")
_SKIPPED = re.compile(
    r"(^|/)(dist|build|generated|__tests__|tests?|testing|examples?|bench(marks?)?|docs?|node_modules)(/|$)"
    r"|\.(min|test|spec|d)\.\w+$|_(test|bench)\.\w+$"
)
_BENCHMARK = re.compile(r"human_?eval|has_close_elements", re.IGNORECASE)  # benchmarks adapters, so never trained on


@dataclass(frozen=True)
class ScriptPackage(corpus.CorpusPackage):
    """Pinned npm package."""

    folder: str = field(kw_only=True)  # of the sources within the package

    @property
    def file(self) -> str:
        """File name that npm gives the archive."""
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


@dataclass(frozen=True)
class Archive:
    """Downloaded package: a wheel or an npm archive."""

    path: Path
    held_out: bool
    folder: str = "."  # of the sources within the package


def read_list() -> list[ScriptPackage]:
    """Return the packages of the list, in order."""
    return [ScriptPackage(**entry) for entry in tomllib.loads(ADAPTER_LIST.read_text("utf-8"))["package"]]


def fetch_archives(folder: Path) -> list[Archive]:
    """Return all package archives, downloading missing ones into `folder`."""
    wheels = [Archive(path, package.held_out) for package, path in corpus.fetch(corpus.read_list(), folder / "wheels")]
    return [*wheels, *fetch(read_list(), folder / "npm")]


def fetch(packages: list[ScriptPackage], folder: Path) -> list[Archive]:
    """Download missing npm packages into `folder` and return all archives; TrainingError for a wrong hash."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [f"{p.name}@{p.version}" for p in packages if not (folder / p.file).is_file()]
    if missing:
        if not shutil.which("npm"):
            raise TrainingError(f"corpus: npm is missing (needed to download {missing[0]} and others); install Node.js")
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), *missing]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
            raise TrainingError(f"corpus: npm pack into {folder} failed: {reason}; this step needs a network")
    for package in packages:
        path = folder / package.file
        if not path.is_file() or sha256_of(path) != package.sha256:
            raise TrainingError(f"corpus: {path} is not the pinned {package.name} {package.version}; delete it")
    return [Archive(folder / p.file, p.held_out, p.folder) for p in packages]


def read_sources(archive: Archive) -> dict[str, str]:
    """Return the hand-written sources of a package by path, up to about `PACKAGE_BUDGET` characters."""
    sources: dict[str, str] = {}
    budget = corpus.PACKAGE_BUDGET
    for name, raw in _files(archive.path):
        if archive.path.suffix == ".whl":
            is_source = name.endswith(".py")
        else:
            is_source = PurePosixPath(name).is_relative_to(archive.folder) and language_of(name) not in ("", "python")
        if not is_source or corpus.SKIPPED_FOLDERS.search(name) or _SKIPPED.search(name):
            continue
        text = corpus.source_text(raw)
        if text is None or _BENCHMARK.search(text):
            continue
        if language_of(name) != "python":
            text = re.sub(r"\r\n?", "\n", raw.decode("utf-8-sig"))  # with its tabs
        sources[name] = text
        budget -= len(text)
        if budget < 0:
            break
    return sources


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each archive file that is small enough to be a source, in archive order."""
    max_bytes = corpus.FILE_BYTES[1]
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            for entry in wheel.infolist():
                if entry.file_size <= max_bytes:
                    yield entry.filename, wheel.read(entry)
        return
    with tarfile.open(path) as package:
        for member in package:
            file = package.extractfile(member) if member.isfile() and member.size <= max_bytes else None
            if file:
                yield member.name.partition("/")[2], file.read()  # without npm's own folder
