"""A Neovim to test with: the one named, the one installed, or one fetched from Debian.

`python -P lab/scripts/editors/fetch.py [--suite sid] [--folder .venv/editors]` prints its path. $LOCALDFLASH_NVIM names
one; otherwise `nvim` on PATH is taken where it is new enough; otherwise Debian's is fetched into the folder, once. Exit
codes: 0 found or fetched, 1 not to be had (one line says why).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localdflash.lab.scripts.editors.debian import CannotFetch, launcher, unpack

FOLDER = Path(__file__).parents[3] / ".venv" / "editors"
NEWEST = "sid"  # 0.12; trixie has 0.10.4, the oldest that the plugin works with
OLDEST = (0, 12)
ENVIRONMENT = {
    "VIMRUNTIME": "{root}/usr/share/nvim/runtime",
    "LUA_CPATH": "{root}/usr/lib/{triplet}/lua/5.1/?.so",
}


def neovim(suite: str = NEWEST, folder: Path = FOLDER) -> Path:
    """The path of a Neovim, fetched if needed. Raises CannotFetch."""
    if found := installed(suite, folder):
        return found
    home = (folder / f"neovim-{suite}").absolute()
    root = unpack(suite, ["neovim"], home)
    return launcher(home / "nvim", root, "usr/bin/nvim", ENVIRONMENT)


def installed(suite: str = NEWEST, folder: Path = FOLDER) -> Path | None:
    """The path of a Neovim that is here already, or None."""
    if suite == NEWEST:
        if named := os.environ.get("LOCALDFLASH_NVIM"):
            if not shutil.which(named):
                raise CannotFetch(f"LOCALDFLASH_NVIM={named} is no program")
            return Path(named).absolute()
        if (there := shutil.which("nvim")) and version(Path(there)) >= OLDEST:
            return Path(there)
    fetched = (folder / f"neovim-{suite}" / "nvim").absolute()
    return fetched if fetched.is_file() else None


def version(nvim: Path) -> tuple[int, ...]:
    """The version of a Neovim; () if the program says none."""
    said = subprocess.run([nvim, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.match(r"NVIM v(\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default=NEWEST)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        found = neovim(given.suite, given.folder)
    except CannotFetch as why:
        sys.stderr.write(f"fetch.py: {why}\n")
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
