"""Checks of what surrounds localdflash: the daemon's socket, the terminal, the editors."""

import os
import shutil
import sys

from localdflash.cli.doctor.check import Finding

EDITORS = {"nvim": "Neovim", "vim": "Vim", "code": "VS Code", "codium": "VSCodium", "zed": "Zed", "hx": "Helix"}
PORT = 8012  # llama.vim's default
CAPABLE = ("kitty", "wezterm", "ghostty", "foot", "alacritty", "iterm")  # of OSC 52 and kitty's keys


def runtime_socket(name: str) -> Finding:
    """Check that the daemon's socket can be created in a folder that only this user can enter."""
    from localdflash.base.files import paths

    path = paths.engine_socket()
    if not path.parent.exists():
        return Finding(name, "ok", f"{path}; its folder does not exist yet")
    paths.check_private(path.parent)
    return Finding(name, "ok", str(path))


def daemon(name: str) -> Finding:
    """Report whether a daemon runs."""
    from localdflash.server.client import find

    return Finding(name, "ok", "running" if find() else "not running; `localdflash serve` starts one")


def terminal(name: str) -> Finding:
    """Report the terminal's type, colours, encoding and size, without sending it a query."""
    kind, program = os.environ.get("TERM", ""), os.environ.get("TERM_PROGRAM", "")
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    size = shutil.get_terminal_size()
    capable = any(known in f"{kind} {program}".lower() for known in CAPABLE) and "TMUX" not in os.environ
    columns = f"{size.columns} columns" if sys.stdout.isatty() else "stdout is not a terminal"
    keys = f"clipboard (OSC 52) and kitty keyboard protocol{'' if capable else ' unknown'}"
    detail = ", ".join((kind or "no TERM", _colours(kind), encoding or "no encoding", columns, keys))
    if encoding.replace("-", "") != "utf8":
        return Finding(name, "warning", detail, "use UTF-8: `export LANG=C.UTF-8`, or PYTHONUTF8=1")
    if sys.stdout.isatty() and size.columns < 60:
        return Finding(name, "warning", detail, "make it at least 60 columns wide")
    return Finding(name, "ok", detail)


def _colours(kind: str) -> str:
    if "NO_COLOR" in os.environ:
        return "no colours (NO_COLOR)"
    if os.environ.get("COLORTERM", "") in ("truecolor", "24bit") or kind.endswith("-direct"):
        return "truecolor"
    if "256" in kind:
        return "256 colours"
    return "no colours" if kind in ("", "dumb") else "16 colours"


def editors(name: str) -> Finding:
    """Report which editors are installed, and how they reach localdflash."""
    found = [label for program, label in EDITORS.items() if shutil.which(program)]
    if not found:
        return Finding(name, "ok", "none found; any editor with an OpenAI-compatible client can connect")
    url = f"http://127.0.0.1:{PORT}"
    how = f"{url}/infill (llama.vim, llama.vscode) or {url}/v1 (OpenAI-compatible)"
    return Finding(name, "ok", ", ".join(found), f"to connect: `localdflash serve --port {PORT}`, then {how}")
