"""Roles: named system prompts for a chat, built in, or from the user's files `roles/NAME.md` in the config folder."""

import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from localdflash.base.errors import UsageError, did_you_mean
from localdflash.base.files.paths import config_folder

MAX_ROLE_BYTES = 64 << 10
NONE = "none"  # the user's name for no role
_NAME = re.compile(r"[a-z0-9_-]{1,64}", re.ASCII)

BUILTIN: Mapping[str, str] = MappingProxyType(  # few and literal instructions, because models are small
    {
        "coder": (
            "You are an expert programmer. Answer with complete, working code in fenced blocks, in the language and the"
            " style of the code you are shown, then explain in at most three sentences what matters. Change nothing"
            " that was not asked for."
        ),
        "reviewer": (
            "You review code. List the real problems, the worst first: bugs, wrong edge cases, security, then clarity;"
            " for each give the line, why it is wrong, and the corrected code. If there is none, say so in one"
            " sentence."
        ),
        "explainer": (
            "You explain code to a colleague who knows programming but not this code. Say first in one sentence what it"
            " does, then go through it step by step in plain words, with a small example."
        ),
        "tester": (
            "You write tests. Use the test framework and the style of the code you are shown, cover the normal case,"
            " the edge cases and the errors, and give each test a name that says what must hold. Answer with the test"
            " code only."
        ),
        "debugger": (
            "You find the cause of bugs. Name the most likely cause and the line it is on, say how to confirm it, and"
            " give the smallest fix. If something you need is missing, ask for it in one question."
        ),
        "shell": (
            "You write commands for a Unix shell. Answer with one fenced block that can be pasted as it is, then one"
            " sentence on what it does. If it deletes or overwrites anything, say so before the block."
        ),
        "brief": "Answer in as few words as are correct. No introduction, no summary, no apology.",
    }
)


def roles_folder() -> Path:
    """Return the folder of the user's roles. The folder may be missing."""
    return config_folder() / "roles"


def list_roles(say: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """Return the text of every role by name; `say` receives a line for each invalid file."""
    roles, folder = dict(BUILTIN), roles_folder()
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".md")
    except FileNotFoundError:
        files = []
    except OSError as error:
        say(f"{folder}: cannot read your roles: {error.strerror}")
        files = []
    for file in files:
        try:
            roles[_check_name(file.stem)] = read_text(file, MAX_ROLE_BYTES)
        except UsageError as error:
            roles.pop(file.stem, None)  # `load_role` fails as well, instead of using the built-in role
            say(str(error) if str(file) in str(error) else f"{file}: {error}")
    return dict(sorted(roles.items()))


def load_role(name: str) -> str:
    """Return the text of a role; "" for the names "" and "none". UsageError if the name or the file is invalid."""
    if name.lower() in ("", NONE):
        return ""
    name = _check_name(name.lower())
    file = roles_folder() / f"{name}.md"
    if os.path.lexists(file):
        return read_text(file, MAX_ROLE_BYTES)
    if name in BUILTIN:
        return BUILTIN[name]
    known = list_roles()
    raise UsageError(f"there is no role {name!r}{did_you_mean(name, known) or ': one of ' + ', '.join(known)}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == NONE:
        raise UsageError(f"{name!a} is not a role name: a-z, 0-9, '-' and '_', at most 64, and not {NONE!r}")
    return name


def read_text(file: Path, max_bytes: int) -> str:
    """Return the stripped text of a file; UsageError if it is unreadable, too large, empty or not UTF-8."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise UsageError(f"{file}: not a regular file")
        with file.open("rb") as stream:
            data = stream.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise UsageError(f"{file}: larger than {max_bytes >> 10} KiB; shorten it")
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line}: not UTF-8; save the file as UTF-8") from error
    if not text:
        raise UsageError(f"{file}: empty file")
    return text
