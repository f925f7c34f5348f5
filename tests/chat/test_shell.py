"""Shell commands of the user: their output, limits and end."""

import asyncio
import sys
import time
from pathlib import Path

import pytest

from localdflash.chat import shell_command
from localdflash.chat.shell_command import run_command

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


def output(command: str, folder: Path) -> str:
    return asyncio.run(run_command(command, folder)).text


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo a; exit 3", "a\n[exit code 3]\n"),
        ("no-such-program 2>/dev/null", "\n[exit code 127]\n"),
        ("cat", "\n"),  # stdin is empty
        (r"printf 'a\033[31mb\377'", "ab\ufffd\n"),
    ],
)
def test_exit_code_is_appended(command: str, text: str, tmp_path: Path) -> None:
    assert output(command, tmp_path) == text


def test_long_output_is_cut_and_the_program_killed(tmp_path: Path) -> None:
    for _ in range(20):  # one in twenty hung while the pipe was full
        text = output("yes", tmp_path)
        assert len(text) < shell_command.MAX_OUTPUT_BYTES + 100
        assert text.endswith("[ended after 64 KB]\n")


def test_slow_program_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_command, "TIMEOUT_SECONDS", 0.2)
    began = time.monotonic()
    assert output("echo a; sleep 60 & sleep 60", tmp_path) == "a\n[ended after 0.2 s]\n"
    assert time.monotonic() - began < 20


def test_cancelling_kills_the_command_and_its_children(tmp_path: Path) -> None:
    async def run() -> None:
        running = asyncio.create_task(run_command("(sleep 1; touch late) & sleep 60", tmp_path))
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(1.2)

    asyncio.run(run())
    assert not (tmp_path / "late").exists()
