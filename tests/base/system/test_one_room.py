"""What one system alone has is used in localdflash/base/system, so that the rest at least loads on every system."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ROOM = ROOT / "localdflash" / "base" / "system"
PROGRAMS = {  # run by their path, with nothing of ours to import
    ROOT / "lab" / "bench" / "jail.py",  # refuses Windows in its first lines
    ROOT / "localdflash" / "text" / "grammar_trial.py",  # sets no limits there
}
MODULES = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "winreg"}
NAMES = {
    "os": {
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK", "chown", "chroot", "fchmod", "fchown"),
        *("fork", "forkpty", "getegid", "geteuid", "getgid", "getloadavg", "getpgid", "getpgrp", "getsid", "getuid"),
        *("kill", "killpg", "lchown", "memfd_create", "mkfifo", "mknod", "nice", "openpty", "pread", "pwrite"),
        *("sched_getaffinity", "sched_setaffinity", "sendfile", "set_blocking", "setpgid", "setsid", "setuid"),
        *("statvfs", "ttyname", "uname", "umask", "wait", "waitpid"),
    },
    "signal": {"SIGALRM", "SIGBREAK", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "alarm"},
    "socket": {"AF_UNIX", "SO_EXCLUSIVEADDRUSE", "SO_PEERCRED", "SO_REUSEADDR"},
    "mmap": {"MADV_DONTNEED", "MAP_ANONYMOUS", "MAP_PRIVATE"},
}
METHODS = {"add_signal_handler", "create_unix_connection", "create_unix_server", "open_unix_connection"}
METHODS |= {"start_unix_server"}
ARGUMENTS = {"creationflags", "dir_fd", "preexec_fn", "src_dir_fd", "start_new_session"}


def files() -> list[Path]:
    """Every module of the package but those of the room."""
    found = [
        path
        for folder in ("localdflash", "tui", "lsp", "kernels", "lab/bench", "lab/train", "lab/cli")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return sorted(path for path in found if ROOM not in path.parents and "prompts" not in path.parts)


def foreign(tree: ast.AST) -> Iterator[str]:
    """What a module uses that not every system has."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (name.name for name in names if name.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                yield from [module] if module in MODULES else []
                yield from (name.name for name in names if name.name in NAMES.get(module, ()))
            case ast.Attribute(value=ast.Name(module), attr=name) if name in NAMES.get(module, ()):
                yield f"{module}.{name}"
            case ast.Attribute(attr=name) if name in METHODS:
                yield name
            case ast.keyword(arg=str(name)) if name in ARGUMENTS:
                yield name


def test_no_other_room_has_what_one_system_alone_has() -> None:
    uses = [rf"\b{module}\.(?:{'|'.join(names)})\b" for module, names in NAMES.items()]
    imports = rf"^\s*(?:import|from) (?:{'|'.join(MODULES)})\b|^\s*from (?:{'|'.join(NAMES)}) import"
    words = re.compile("|".join([*uses, imports, *METHODS, *ARGUMENTS]), re.MULTILINE)  # few files are parsed
    found = {}
    for path in files():
        if path in PROGRAMS or not words.search(text := path.read_text(encoding="utf-8")):
            continue
        if used := sorted(set(foreign(ast.parse(text)))):
            found[path.relative_to(ROOT).as_posix()] = used
    assert found == {}


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("def f():\n    from termios import TCSANOW", ["termios"]),
        ("from os import fork", ["fork"]),
        ("import os\nos.kill(1, 0)", ["os.kill"]),
        ("loop.add_signal_handler(2, f)", ["add_signal_handler"]),
        ("Popen([], start_new_session=True)", ["start_new_session"]),
        ("import os\nos.getpid()\nprocess.kill()", []),
    ],
)
def test_it_would_be_seen(code: str, used: list[str]) -> None:
    assert list(foreign(ast.parse(code))) == used
