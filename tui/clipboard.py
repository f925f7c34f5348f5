"""Copy text unchanged, through the terminal (OSC 52) and through a clipboard program of the system if there is one.

A terminal does not confirm, so the result says only what is known. No shell is used; text is passed on standard input.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from localdflash.base.system.process import apart
from localdflash.text.sanitize import sanitize

MAX_TERMINAL_BYTES = 74_000  # bytes: beyond 100 KB in base64 many terminals drop it without a word
_TIMEOUT_SECONDS = 1.0  # seconds

# Command, the variable without which it cannot work (desktop sessions), encoding of its input.
_PROGRAMS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (("wl-copy",), "WAYLAND_DISPLAY", "utf-8"),
    (("xclip", "-selection", "clipboard", "-in"), "DISPLAY", "utf-8"),
    (("xsel", "--clipboard", "--input"), "DISPLAY", "utf-8"),
    (("pbcopy",), "", "utf-8"),
    (("clip.exe",), "", "utf-16"),
)


class Terminal(Protocol):
    """Terminal that supports copying by OSC 52, such as a Textual app."""

    def copy_to_clipboard(self, text: str) -> None:
        """Ask the terminal to copy."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of copying `characters`; `program` is the clipboard program used, or ""."""

    characters: int
    asked: bool  # the terminal
    program: str
    unseen: bool  # some of the characters are not seen when the text is shown

    def line(self, what: str) -> str:
        """Return one line for the user; `what` names what was copied, such as "the answer"."""
        amount = f"{self.characters} character{'' if self.characters == 1 else 's'}"
        warning = "; it has characters that cannot be seen" if self.unseen else ""
        if self.program:
            return f"Copied {what}: {amount}{warning}"
        if self.asked:
            return f"Asked the terminal to copy {what}: {amount}{warning}"
        return f"{amount} are too much for the terminal, and no clipboard program took them: not copied"


async def copy(terminal: Terminal, text: str, environment: Mapping[str, str] = os.environ) -> Result:
    """Copy by OSC 52 and by a clipboard program. Lone surrogates become U+FFFD."""
    encodable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    asked = len(encodable.encode()) <= MAX_TERMINAL_BYTES
    if asked:
        terminal.copy_to_clipboard(encodable)
    program = await _native(encodable, environment)
    shown = text.replace("\r\n", "\n")
    return Result(len(text), asked, program, sanitize(shown) != shown)


async def _native(text: str, environment: Mapping[str, str]) -> str:
    """Return the first program that took the text, or ""."""
    for command, needed, encoding in _PROGRAMS:
        path = shutil.which(command[0], path=environment.get("PATH", ""))
        if (
            path
            and (not needed or environment.get(needed))
            and await _took((path, *command[1:]), text.encode(encoding))
        ):
            return command[0]
    return ""


async def _took(command: tuple[str, ...], data: bytes) -> bool:
    """Return whether the program read all of the text and exited with status 0 before the timeout."""
    nowhere = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=nowhere, stderr=nowhere, **apart()
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
