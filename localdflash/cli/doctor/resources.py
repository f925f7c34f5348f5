"""Checks of the machine and the environment: memory, disk, file watches, socket, terminal, editors."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from localdflash.base.errors import NoDevice
from localdflash.cli.doctor.check import Finding

MIN_FREE_MEMORY_BYTES = 1 << 30  # for the embedded pair, with a margin
MIN_FREE_DISK_BYTES = 8 << 30  # for one 8B pair
MIN_WATCHES = 65536  # a large repository has tens of thousands of folders and files
EDITORS = {"nvim": "Neovim", "vim": "Vim", "code": "VS Code", "codium": "VSCodium", "zed": "Zed", "hx": "Helix"}
PORT = 8012  # default port of llama.vim
WATCHES = Path("/proc/sys/fs/inotify/max_user_watches")


def processor(name: str) -> Finding:
    """Report the processor's name and cores."""
    import psutil

    from localdflash.base.machine.hardware import describe_processor

    return Finding(name, "ok", f"{describe_processor()}, {psutil.cpu_count(logical=False) or psutil.cpu_count()} cores")


def memory(name: str) -> Finding:
    """Report the free memory: of the system, or up to the container's limit."""
    import psutil

    from localdflash.models.memory.free import system_budget

    free = system_budget().free
    detail = f"{free / 1e9:.1f} GB free of {psutil.virtual_memory().total / 1e9:.1f}"
    if free < MIN_FREE_MEMORY_BYTES:
        return Finding(name, "warning", detail, "close other programs; the embedded pair needs 1 GB")
    return Finding(name, "ok", detail)


def bandwidth(name: str) -> Finding:
    """Report the memory bandwidth of CPU and GPU, which limits tokens per second."""
    from localdflash.backends.cuda.device import driver_present, find_device
    from localdflash.base.machine import measurements

    found = [measurements.bandwidth()]
    if driver_present():
        with suppress(NoDevice):  # the CUDA check reports the reason
            find_device()
            found.append(measurements.bandwidth(on_gpu=True))
    return Finding(name, "ok", "; ".join(f"{m.value:.1f} GB/s, {m.how}, {m.day}" for m in found))


def models(name: str) -> Finding:
    """Check the models folder: free disk space, and that the files are unchanged since their verification."""
    from localdflash.base.files.paths import nearest_folder
    from localdflash.models.registry import records
    from localdflash.models.registry.pair_entry import models_folder

    folder = models_folder()
    existing = nearest_folder(folder)
    free = shutil.disk_usage(existing).free
    files = [path for path in folder.glob("*/**/*") if path.suffix in (".gguf", ".safetensors")]
    changed = [path for path in files if records.read(path) and not records.current(path)]
    detail = f"{folder}: {len(files)} {'file' if len(files) == 1 else 'files'}, {free / 1e9:.1f} GB of disk free"
    if changed:
        detail += f"; {changed[0].name} changed since its verification"
        return Finding(name, "warning", detail, "run `localdflash models pull` for this file")
    if not os.access(existing, os.W_OK):
        detail += f"; {existing} cannot be written"
        return Finding(name, "warning", detail, "set LOCALDFLASH_HOME to another folder")
    if free < MIN_FREE_DISK_BYTES:
        return Finding(name, "warning", detail, "free disk space: an 8B pair takes about 8 GB")
    return Finding(name, "ok", detail)


def watches(name: str) -> Finding:
    """Check how many files and folders Linux lets one user watch."""
    if not WATCHES.exists():
        return Finding(name, "ok", "no inotify limit on this system")
    limit = int(WATCHES.read_text())
    if limit < MIN_WATCHES:
        setting = "fs.inotify.max_user_watches=524288"
        remedy = f"`sudo sysctl {setting}`; to keep it after a restart, add `{setting}` to /etc/sysctl.conf"
        return Finding(name, "warning", f"{limit} watches: a large repository needs more", remedy)
    return Finding(name, "ok", f"{limit} watches")


def runtime_socket(name: str) -> Finding:
    """Check that the daemon's socket can be created in a folder that only this user can enter."""
    from localdflash.base.files import paths

    path = paths.daemon_socket()
    if not path.parent.exists():
        return Finding(name, "ok", f"{path}; its folder does not exist yet")
    paths.check_private(path.parent)
    return Finding(name, "ok", str(path))


def daemon(name: str) -> Finding:
    """Report whether a daemon runs."""
    from localdflash.server.client import find_daemon

    return Finding(name, "ok", "running" if find_daemon() else "not running; `localdflash serve` starts one")


def terminal(name: str) -> Finding:
    """Report the terminal's type, colours, encoding and size from the environment; send the terminal no query."""
    kind = os.environ.get("TERM", "")
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    size = shutil.get_terminal_size()
    columns = f"{size.columns} columns" if sys.stdout.isatty() else "stdout is not a terminal"
    detail = ", ".join((kind or "no TERM", _colours(kind), encoding or "no encoding", columns))
    if encoding.replace("-", "") != "utf8":
        return Finding(name, "warning", detail, "use UTF-8: `export LANG=C.UTF-8`, or PYTHONUTF8=1")
    if sys.stdout.isatty() and size.columns < 60:
        return Finding(name, "warning", detail, "make the terminal at least 60 columns wide")
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
