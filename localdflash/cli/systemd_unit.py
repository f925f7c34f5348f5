"""`localdflash serve --install-unit`: write a systemd user unit that runs the daemon, as the Debian package does."""

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_config_path

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.server.spawn import PROGRAM

NAME = "localdflash.service"
ENABLE = ("systemctl --user daemon-reload", "systemctl --user enable --now localdflash")
# If a client has started a daemon before, the unit fails and is restarted until that daemon has ended. After the exit
# codes 2 and 3 (invalid setting, bad model) it is not restarted, because it would fail again.
UNIT = """\
[Unit]
Description=localdflash, a local coding assistant: the daemon of chat and editors

[Service]
{environment}ExecStart={command}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2 3

[Install]
WantedBy=default.target
"""


def install_unit() -> Path:
    """Write a unit that runs this Python; return its path. UsageError unless on Linux; LocaldflashError on failure."""
    if platform.system() != "Linux":
        raise UsageError("--install-unit: systemd runs on Linux only")
    home = {name: os.environ[name] for name in (paths.HOME_VARIABLE, paths.TRANSPORT_VARIABLE) if os.environ.get(name)}
    text = unit([sys.executable, "-P", "-c", PROGRAM, "serve"], home)
    file = user_config_path() / "systemd" / "user" / NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        if not file.is_file() or file.read_bytes() != text.encode():
            raise LocaldflashError(f"{file}: another unit has this name; remove it and try again") from None
    except OSError as error:
        raise LocaldflashError(f"{error.filename or file}: cannot write: {error.strerror}") from error
    return file


def unit(command: Sequence[str], environment: dict[str, str]) -> str:
    """Return the text of a unit that runs `command` with the variables in `environment`."""
    lines = [f"Environment={_quote(f'{name}={value}')}\n" for name, value in environment.items()]
    words = [_quote(word).replace("$", "$$") for word in command]
    return UNIT.format(environment="".join(lines), command=" ".join(words))


def _quote(word: str) -> str:
    """Return a word quoted for a unit file, see systemd.syntax(7); UsageError for control characters."""
    if not word.isprintable():
        raise UsageError(f"--install-unit: control characters in {word!r}")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if escaped and not set(escaped) & set(" ;'\"\\") else f'"{escaped}"'
