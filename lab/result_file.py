"""JSON files of measurements, each with its conditions: command, date, commit and processor.

Import it before measuring: the commit is that of the import, even if the tree changes during the measurement.
"""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from localdflash import __version__
from localdflash.base.machine.hardware import describe_processor

ROOT = Path(__file__).resolve().parent.parent


def conditions() -> dict[str, str]:
    """Return the command of this process, the date, the commit and the processor."""
    return {
        "command": shlex.join([*_program(Path(sys.argv[0])), *map(_without_folder, sys.argv[1:])]),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": _COMMIT,
        "processor": describe_processor(),
    }


def write(path: Path | None, measurement: dict[str, Any], part: str = "") -> None:
    """Write a measurement and its conditions to `path`, if given; with `part`, as one entry of the file."""
    if not path:
        return
    document = conditions() | measurement
    if part:
        stored = json.loads(path.read_text("utf-8")) if path.exists() and path.stat().st_size else {}
        document = stored | {part: document}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")


def commit(tree: Path = ROOT) -> str:
    """Return the commit of a source tree, with "-dirty" if files differ; of an installed package its version."""
    try:
        # Fails in a virtual environment that is inside another repository.
        _git(tree, "ls-files", "--error-unmatch", "models.toml")
        return _git(tree, "describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):
        return __version__


def _git(tree: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


_COMMIT = commit()


def _program(path: Path) -> list[str]:
    if path.suffix != ".py":
        return [path.name]
    path = path.resolve()
    return ["python", "-P", str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name)]


def _without_folder(argument: str) -> str:
    """Return an argument without the folder of an absolute path, which is specific to this machine."""
    return Path(argument).name if argument.startswith("/") else argument
