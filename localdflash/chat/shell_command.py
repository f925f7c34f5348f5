"""Run a `!command` that the user confirmed, in the chat's folder. Its output becomes an attachment."""

import asyncio
import re
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from contextlib import suppress
from pathlib import Path

from localdflash.base.errors import UsageError
from localdflash.base.system.process import detached_options, kill_with_children
from localdflash.chat.messages import Attachment
from localdflash.text.sanitize import sanitize

MAX_OUTPUT_BYTES = 64 << 10  # a program that prints more is killed
TIMEOUT_SECONDS = 120.0
DRAIN_SECONDS = 2.0  # timeout for reading the rest: a surviving child process may keep the pipe open
_COLOURS = re.compile(r"\x1b\[[\d;]*m")  # some programs print colours even into a pipe


def parse_command(text: str) -> str:
    """Return the command in a message of one line that begins with `!`; "" for any other message."""
    return text[1:].strip() if text.startswith("!") and "\n" not in text.strip() else ""


async def run_command(command: str, folder: Path) -> Attachment:
    """Run a command; return its stdout and stderr, and its exit code if not 0. Cancelling this kills the command."""
    try:
        process = await asyncio.create_subprocess_shell(
            command, cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, **detached_options()
        )
    except OSError as error:
        raise UsageError(f"{command}: cannot be run: {error.strerror}") from error
    output, ending = bytearray(), ""
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            ending = await _read_output(process, output)
    except TimeoutError:
        ending = f"ended after {TIMEOUT_SECONDS:g} s"
    finally:
        await _end_process(process)
    text = sanitize(_COLOURS.sub("", output[:MAX_OUTPUT_BYTES].decode(errors="replace")))
    last_line = f"\n[{ending}]" if ending else ""
    return Attachment("output", f"$ {command}", f"{text.rstrip()}{last_line}\n")


async def _read_output(process: Process, output: bytearray) -> str:
    """Append the command's output to `output`; return how the command ended, "" for exit code 0."""
    assert process.stdout
    while data := await process.stdout.read(MAX_OUTPUT_BYTES):
        output += data
        if len(output) > MAX_OUTPUT_BYTES:
            return f"ended after {MAX_OUTPUT_BYTES >> 10} KB"
    code = await process.wait()
    return f"exit code {code}" if code else ""


async def _end_process(process: Process) -> None:
    """Kill the process and its children, and read the rest of the pipe, because `process.wait` waits for its end."""
    kill_with_children(process.pid)
    assert process.stdout
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while await process.stdout.read(MAX_OUTPUT_BYTES):
                pass
            await process.wait()
