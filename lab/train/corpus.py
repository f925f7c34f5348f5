"""Training corpus: Python files from the pinned, permissively licensed wheels of `corpus.toml`.

Vendored copies are left out because the licence may not cover them; tests and generated data teach little.
"""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.errors import TrainingError

CORPUS_LIST = Path(__file__).with_name("corpus.toml")
PACKAGE_BUDGET = 5_000_000  # maximum bytes used of one package, so that no house style dominates
FILE_BYTES = (200, 80_000)  # minimum and maximum of a source file
SKIPPED_FOLDERS = re.compile(
    r"(^|/)(_?vendor(ed|ized)?|_?extern(als?)?|third_?party|thirdparty|tests?|testing|node_modules|locales?|migrations)(/|$)"
    r"|(^|/)(test_[^/]*|[^/]*_test|conftest|_?version)\.py$"
)


@dataclass(frozen=True)
class CorpusPackage:
    """Pinned wheel of the corpus."""

    name: str
    version: str
    licence: str
    sha256: str
    held_out: bool = False  # True: only for measurements


def read_list() -> list[CorpusPackage]:
    """Return the packages of the corpus list, in order."""
    return [CorpusPackage(**entry) for entry in tomllib.loads(CORPUS_LIST.read_text("utf-8"))["package"]]


def fetch(packages: list[CorpusPackage], folder: Path) -> list[tuple[CorpusPackage, Path]]:
    """Download missing wheels into `folder`, check all hashes, and return each package's path; else TrainingError."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(f"{p.name}=={p.version} --hash=sha256:{p.sha256}\n" for p in packages))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "--dest", str(folder), "--requirement", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
        raise TrainingError(f"corpus: pip download into {folder} failed: {reason}; this step needs a network")
    return [(p, _wheel(folder, p)) for p in packages]


def _wheel(folder: Path, package: CorpusPackage) -> Path:
    stem = re.sub(r"[-_.]+", "_", package.name).lower()
    wheels = [w for w in folder.glob("*.whl") if w.name.lower().startswith(f"{stem}-{package.version}-")]
    if len(wheels) != 1:
        raise TrainingError(
            f"corpus: expected one wheel of {package.name} {package.version} in {folder}, found {len(wheels)}"
        )
    return wheels[0]


def python_files(wheel: Path) -> Iterator[str]:
    """Yield the hand-written Python sources of one wheel, in archive order, up to the package's budget."""
    budget = PACKAGE_BUDGET
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            if not entry.filename.endswith(".py") or SKIPPED_FOLDERS.search(entry.filename):
                continue
            if entry.file_size > FILE_BYTES[1]:
                continue
            text = source_text(archive.read(entry))
            if text is None:
                continue
            yield text
            budget -= entry.file_size
            if budget < 0:
                return


def source_text(raw: bytes) -> str | None:
    """Return the text with line feeds, and spaces for tabs; None unless it looks hand-written and has a usable size."""
    if not FILE_BYTES[0] <= len(raw) <= FILE_BYTES[1]:
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return re.sub(r"\r\n?", "\n", text).replace("\t", "    ") if _is_hand_written(text) else None


def _is_hand_written(text: str) -> bool:
    lines = text.splitlines()
    longest = max(map(len, lines))
    ascii_share = sum(c < "\x80" for c in text) / len(text)
    return longest < 200 and len(text) / len(lines) < 60 and ascii_share > 0.97
