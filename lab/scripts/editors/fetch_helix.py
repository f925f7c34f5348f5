"""A Helix to test with: the one named, `hx` on PATH, or one fetched from Debian.

`python -P lab/scripts/editors/fetch_helix.py [--folder .venv/editors]` prints its path. $LOCALDFLASH_HELIX names one.
Exit codes: 0 found or fetched, 1 not to be had (one line says why).
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

from localdflash.lab.scripts.editors.debian import CannotFetch, launcher, unpack
from localdflash.lab.scripts.editors.fetch import FOLDER

SUITE = "sid"  # 25.07


def helix(folder: Path = FOLDER) -> Path:
    """The path of a Helix, fetched if needed. Raises CannotFetch."""
    if found := installed(folder):
        return found
    home = (folder / "helix").absolute()
    root = unpack(SUITE, ["hx"], home)
    return launcher(home / "hx", root, "usr/lib/hx/hx", {"HELIX_RUNTIME": "{root}/usr/lib/hx/runtime"})


def installed(folder: Path = FOLDER) -> Path | None:
    """The path of a Helix that is here already, or None."""
    if named := os.environ.get("LOCALDFLASH_HELIX"):
        if not shutil.which(named):
            raise CannotFetch(f"LOCALDFLASH_HELIX={named} is no program")
        return Path(named).absolute()
    if there := shutil.which("hx"):
        return Path(there)
    fetched = (folder / "helix" / "hx").absolute()
    return fetched if fetched.is_file() else None


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        found = helix(given.folder)
    except CannotFetch as why:
        sys.stderr.write(f"fetch_helix.py: {why}\n")
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
