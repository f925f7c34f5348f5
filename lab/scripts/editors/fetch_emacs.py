"""An Emacs to test with: the one named, the one installed, or one fetched from Debian.

`python -P lab/scripts/editors/fetch_emacs.py [--folder .venv/editors]` prints its path. $LOCALDFLASH_EMACS names one;
otherwise `emacs` on PATH is taken where it is new enough; otherwise Debian's is fetched into the folder, once.
Exit codes: 0 found or fetched, 1 not to be had (one line says why).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from localdflash.lab.scripts.editors.debian import CannotFetch, launcher, unpack
from localdflash.lab.scripts.editors.fetch import FOLDER

SUITE = "sid"  # 30.2
OLDEST = (29, 1)  # the first with eglot


def emacs(folder: Path = FOLDER) -> Path:
    """The path of an Emacs, fetched if needed. Raises CannotFetch."""
    if found := installed(folder):
        return found
    home = (folder / "emacs").absolute()
    root = unpack(SUITE, ["emacs-nox"], home)
    shared = next(root.glob("usr/share/emacs/[0-9]*"))
    helpers = next(root.glob(f"usr/libexec/emacs/{shared.name}/*"))
    # Emacs looks for the image of its own Lisp next to the program, too.
    (root / "usr/bin/emacs-nox.pdmp").symlink_to(next(helpers.glob("*.pdmp")))
    environment = {
        "EMACSLOADPATH": f"{shared}/lisp",
        "EMACSDATA": f"{shared}/etc",
        "EMACSDOC": f"{shared}/etc",
        "EMACSPATH": str(helpers),
    }
    return launcher(home / "start", root, "usr/bin/emacs-nox", environment)


def installed(folder: Path = FOLDER) -> Path | None:
    """The path of an Emacs that is here already, or None."""
    if named := os.environ.get("LOCALDFLASH_EMACS"):
        if not shutil.which(named):
            raise CannotFetch(f"LOCALDFLASH_EMACS={named} is no program")
        return Path(named).absolute()
    if (there := shutil.which("emacs")) and version(Path(there)) >= OLDEST:
        return Path(there)
    fetched = (folder / "emacs" / "start").absolute()
    return fetched if fetched.is_file() else None


def version(program: Path) -> tuple[int, ...]:
    """The version of an Emacs; () if the program says none."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    found = re.match(r"GNU Emacs (\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        found = emacs(given.folder)
    except CannotFetch as why:
        sys.stderr.write(f"fetch_emacs.py: {why}\n")
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
