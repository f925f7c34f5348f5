"""Unpack programs from Debian and npm into a folder: without root or installation, with signatures checked.

`unpack("sid", ["neovim"], folder)` fetches the packages and all they depend on, the C library too, and leaves a tree
under `folder/root`; `write_launcher` writes a script that starts a program of that tree with the tree's loader and
libraries. Needs apt-get and dpkg, which Debian and its derivatives have.
"""

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

ARCHIVE = "http://deb.debian.org/debian"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LIBRARIES = ("usr/lib/{triplet}", "lib/{triplet}")
SECONDS = 600  # time limit of a command


class CannotFetch(Exception):
    """A program cannot be installed on this machine; the message is one line."""


def unpack(suite: str, packages: list[str], folder: Path) -> Path:
    """Download packages with their dependencies; return the root of the unpacked tree."""
    if missing := [tool for tool in ("apt-get", "dpkg") if not shutil.which(tool)]:
        raise CannotFetch(f"{missing[0]} is missing: only Debian and its derivatives can download {packages[0]}")
    if not KEYRING.is_file():
        raise CannotFetch(f"{KEYRING} is missing; install the package debian-archive-keyring")
    shutil.rmtree(folder, ignore_errors=True)
    archives, state = folder / "archives", folder / "state"
    for made in (archives, state / "lists" / "partial", state / "cache" / "archives" / "partial"):
        made.mkdir(parents=True)
    (state / "status").touch()  # an empty status, so that every dependency is downloaded
    (state / "sources.list").write_text(f"deb [signed-by={KEYRING}] {ARCHIVE} {suite} main\n")
    _apt(state, archives, "update")
    plan = _apt(state, archives, "--simulate", "install", *packages)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _apt(state, archives, "download", *names)
    for archive in sorted(archives.glob("*.deb")):
        _run(["dpkg", "--extract", str(archive), str(folder / "root")], folder)
    shutil.rmtree(state)
    shutil.rmtree(archives)
    return folder / "root"


def unpack_npm(name: str, sha512: str, folder: Path) -> Path:
    """Download a package (`name@version`) into an empty folder and unpack it; CannotFetch if its hash differs."""
    subprocess.run(["npm", "pack", name, "--silent"], cwd=folder, check=True, stdout=sys.stderr)
    (archive,) = folder.glob("*.tgz")
    if base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() != sha512:
        raise CannotFetch(f"{name}: not the package that was expected (its SHA-512 differs)")
    shutil.unpack_archive(archive, folder, filter="tar")
    return folder / "package"


def write_launcher(script: Path, root: Path, program: str, environment: dict[str, str]) -> Path:
    """Write a script that starts `program` (its path below `root`) independently of this machine's C library."""
    triplet = next(path for path in root.rglob("libc.so.6") if path.is_file()).parent.name
    newer, older = root.glob("usr/lib*/ld-linux*.so*"), root.glob("lib/*/ld-linux*.so*")  # older: /lib is not in /usr
    loader = next(newer, None) or next(older)
    libraries = ":".join(str(root / folder.format(triplet=triplet)) for folder in LIBRARIES)
    exports = "".join(
        f"export {name}='{value.format(root=root, triplet=triplet)}'\n" for name, value in environment.items()
    )
    script.write_text(f'#!/bin/sh\n{exports}exec "{loader}" --library-path "{libraries}" "{root / program}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return script


def _apt(state: Path, folder: Path, *arguments: str) -> str:
    settings = {
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State": state,
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
        "APT::Sandbox::User": "root",  # the user _apt may not read this folder
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    return _run(["apt-get", "-qq", *options, *arguments], folder)


def _run(command: list[str], folder: Path) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotFetch(f"{command[0]} did not end within {SECONDS} s") from None
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise CannotFetch(f"{command[0]} failed: {output[-1] if output else f'exit code {done.returncode}'}")
    return done.stdout
