"""An opencode to test with: the one named, `opencode` on PATH, or one fetched from npm (59 MB).

`python -P lab/scripts/editors/fetch_opencode.py [--folder .venv/editors]` prints its path. $LOCALDFLASH_OPENCODE names
one. Exit codes: 0 found or fetched, 1 not to be had (one line says why).
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from localdflash.lab.scripts.editors.debian import CannotFetch
from localdflash.lab.scripts.editors.fetch import FOLDER
from localdflash.lab.scripts.editors.npm import unpack

PACKAGE = "opencode-linux-x64@1.18.34"
SHA512 = "RTAMjCve4euxP2QKLuvRmdoW5J5DQK1DiZqt+7slfixyjAEi79QC2Df2oYKogibaAI4IEU8uzenoJeEl3k+UEw=="


def opencode(folder: Path = FOLDER) -> Path:
    """The path of an opencode, fetched if needed. Raises CannotFetch."""
    if found := installed(folder):
        return found
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        raise CannotFetch("it can be fetched for Linux on x86-64 only: install opencode")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=folder) as there:
            unpack(PACKAGE, SHA512, Path(there)).rename(_home(folder))
    except (subprocess.CalledProcessError, OSError) as error:
        raise CannotFetch(str(error)) from None
    return _home(folder) / "bin" / "opencode"


def installed(folder: Path = FOLDER) -> Path | None:
    """The path of an opencode that is here already, or None."""
    if named := os.environ.get("LOCALDFLASH_OPENCODE"):
        if not shutil.which(named):
            raise CannotFetch(f"LOCALDFLASH_OPENCODE={named} is no program")
        return Path(named).absolute()
    if there := shutil.which("opencode"):
        return Path(there)
    fetched = (_home(folder) / "bin" / "opencode").absolute()
    return fetched if fetched.is_file() else None


def _home(folder: Path) -> Path:
    return folder / "opencode"


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        found = opencode(given.folder)
    except CannotFetch as why:
        sys.stderr.write(f"fetch_opencode.py: {why}\n")
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
