"""Copy text by OSC 52, which a terminal does not confirm, and by a clipboard program of the system."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from localdflash.base.system.process import detached_options
from localdflash.text.sanitize import sanitize

MAX_TERMINAL_BYTES = 74_000  # many terminals silently drop more than 100 KB of base64
_TIMEOUT_SECONDS = 1.0

# Command, the environment variable that it needs ("" for none), encoding of its input.
_PROGRAMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("wl-copy",), "WAYLAND_DISPLAY", "utf-8"),
    (("xclip", "-selection", "clipboard", "-in"), "DISPLAY", "utf-8"),
    (("xsel", "--clipboard", "--input"), "DISPLAY", "utf-8"),
    (("pbcopy",), "", "utf-8"),
    (("clip.exe",), "", "utf-16"),
)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """Outcome of copying `characters`; `program` is the clipboard program used, or ""."""

    characters: int
    used_terminal: bool  # whether the text was sent to the terminal
    program: str
    has_invisible: bool  # whether the text has invisible characters

    def line(self, what: str) -> str:
        """Return one line for the user; `what` names what was copied, such as "the answer"."""
        amount = f"{self.characters} character{'' if self.characters == 1 else 's'}"
        warning = "; it has invisible characters" if self.has_invisible else ""
        if self.program:
            return f"Copied {what}: {amount}{warning}"
        if self.used_terminal:
            return f"Asked the terminal to copy {what}: {amount}{warning}"
        return f"{amount} are too many for the terminal, and no clipboard program accepted them: not copied"


async def copy(
    ask_terminal: Callable[[str], None], text: str, environment: Mapping[str, str] = os.environ
) -> CopyResult:
    """Copy by OSC 52, which `ask_terminal` sends, and by a clipboard program. Lone surrogates become U+FFFD."""
    encodable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    use_terminal = len(encodable.encode()) <= MAX_TERMINAL_BYTES
    if use_terminal:
        ask_terminal(encodable)
    program = await _copy_by_program(encodable, environment)
    visible = text.replace("\r\n", "\n")
    return CopyResult(len(text), use_terminal, program, sanitize(visible) != visible)


async def _copy_by_program(text: str, environment: Mapping[str, str]) -> str:
    """Return the first program that accepted the text, or ""."""
    for command, variable, encoding in _PROGRAMS:
        path = shutil.which(command[0], path=environment.get("PATH", ""))
        usable = path and (not variable or environment.get(variable))
        if path and usable and await _run_program((path, *command[1:]), text.encode(encoding)):
            return command[0]
    return ""


async def _run_program(command: tuple[str, ...], data: bytes) -> bool:
    """Return whether the program read all of the text and exited with status 0 before the timeout."""
    devnull = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=devnull, stderr=devnull, **detached_options()
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            await process.communicate(data)
    except (TimeoutError, OSError):
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return False
    return process.returncode == 0
