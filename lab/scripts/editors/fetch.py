"""Find editors and an agent for tests: configured, installed, or downloaded.

`python -P lab/scripts/editors/fetch.py [PROGRAM] [--suite sid] [--folder .venv/editors]` prints the path of Neovim, or
of PROGRAM: emacs, helix, opencode. $LOCALDFLASH_NVIM, $LOCALDFLASH_EMACS, $LOCALDFLASH_HELIX and $LOCALDFLASH_OPENCODE
may name the program. Otherwise a program on PATH is used if it is new enough, else it is downloaded once: editors from
Debian, opencode from npm (59 MB). Exit codes: 0 found or downloaded, 1 unavailable (one line says why).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from localdflash.lab.scripts.editors.unpack_packages import CannotFetch, unpack, unpack_npm, write_launcher

FOLDER = Path(__file__).parents[3] / ".venv" / "editors"
NEWEST = "sid"  # Neovim 0.12, Emacs 30.2, Helix 25.07; trixie has Neovim 0.10.4, the oldest that the plugin works with
OPENCODE = "opencode-linux-x64@1.18.34"
OPENCODE_SHA512 = "RTAMjCve4euxP2QKLuvRmdoW5J5DQK1DiZqt+7slfixyjAEi79QC2Df2oYKogibaAI4IEU8uzenoJeEl3k+UEw=="


class Program(NamedTuple):
    """Program: environment variable with its path, name on PATH, path of a download, and minimum version."""

    variable: str
    name: str
    fetched: str
    oldest: tuple[int, ...] = ()


PROGRAMS = {
    "neovim": Program("LOCALDFLASH_NVIM", "nvim", "neovim-sid/nvim", (0, 12)),
    "emacs": Program("LOCALDFLASH_EMACS", "emacs", "emacs/start", (29, 1)),  # the first with eglot
    "helix": Program("LOCALDFLASH_HELIX", "hx", "helix/hx"),
    "opencode": Program("LOCALDFLASH_OPENCODE", "opencode", "opencode/bin/opencode"),
}


def find_installed(name: str, suite: str = NEWEST, folder: Path = FOLDER) -> Path | None:
    """Return the path of an installed or downloaded program, or None; of other suites only a download."""
    program = PROGRAMS[name]
    if suite == NEWEST:
        if named := os.environ.get(program.variable):
            if not shutil.which(named):
                raise CannotFetch(f"{program.variable}={named}: not an executable")
            return Path(named).absolute()
        if (on_path := shutil.which(program.name)) and (not program.oldest or version(Path(on_path)) >= program.oldest):
            return Path(on_path)
    fetched = (folder / program.fetched.replace(NEWEST, suite)).absolute()
    return fetched if fetched.is_file() else None


def version(program: Path) -> tuple[int, ...]:
    """Return the version of a Neovim or an Emacs; () if it is not printed."""
    output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    match = re.match(r"(?:NVIM v|GNU Emacs )(\d+(?:\.\d+)+)", output)
    return tuple(map(int, match[1].split("."))) if match else ()


def fetch_program(name: str, suite: str = NEWEST, folder: Path = FOLDER) -> Path:
    """Return the path of a program; download it if needed. Raises CannotFetch."""
    if found := find_installed(name, suite, folder):
        return found
    start = (folder / PROGRAMS[name].fetched.replace(NEWEST, suite)).absolute()
    match name:
        case "neovim":
            root = unpack(suite, ["neovim"], start.parent)
            environment = {
                "VIMRUNTIME": "{root}/usr/share/nvim/runtime",
                "LUA_CPATH": "{root}/usr/lib/{triplet}/lua/5.1/?.so",
            }
            return write_launcher(start, root, "usr/bin/nvim", environment)
        case "emacs":
            return _fetch_emacs(start)
        case "helix":
            root = unpack(suite, ["hx"], start.parent)
            return write_launcher(start, root, "usr/lib/hx/hx", {"HELIX_RUNTIME": "{root}/usr/lib/hx/runtime"})
    return _fetch_opencode(start, folder)


def _fetch_emacs(start: Path) -> Path:
    root = unpack(NEWEST, ["emacs-nox"], start.parent)
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
    return write_launcher(start, root, "usr/bin/emacs-nox", environment)


def _fetch_opencode(start: Path, folder: Path) -> Path:
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        raise CannotFetch("opencode: downloads are for Linux on x86-64 only; install opencode")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with TemporaryDirectory(dir=folder) as folder_for_npm:
            unpack_npm(OPENCODE, OPENCODE_SHA512, Path(folder_for_npm)).rename(folder / "opencode")
    except (subprocess.CalledProcessError, OSError) as error:
        raise CannotFetch(str(error)) from None
    return start


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="?", default="neovim", choices=PROGRAMS, metavar="PROGRAM")
    parser.add_argument("--suite", default=NEWEST)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    try:
        found = fetch_program(given.program, given.suite, given.folder)
    except CannotFetch as why:
        sys.stderr.write(f"fetch.py: {why}\n")
        return 1
    sys.stdout.write(f"{found}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
