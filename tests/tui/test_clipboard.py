"""Copying with fake clipboard programs in PATH."""

import asyncio
import os
from pathlib import Path

import pytest

from localdflash.tui.clipboard import MAX_TERMINAL_BYTES, CopyResult, copy


def _program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def _copy(text: str, folder: Path, **variables: str) -> tuple[CopyResult, list[str]]:
    """Copy a text; return the result, and the texts sent to the terminal."""
    to_terminal: list[str] = []
    return asyncio.run(copy(to_terminal.append, text, {"PATH": str(folder), **variables})), to_terminal


def test_clipboard_program_gets_the_exact_text_without_a_shell(tmp_path: Path) -> None:
    _program(tmp_path, "xclip", f'echo "$@" > {tmp_path}/arguments; /bin/cat > {tmp_path}/text')
    text = "a\tb\r\n$(touch x) `y` é 錯 😋\n"
    result, to_terminal = _copy(text, tmp_path, DISPLAY=":0")
    assert (tmp_path / "text").read_bytes() == text.encode()
    assert (tmp_path / "arguments").read_text().split() == ["-selection", "clipboard", "-in"]
    assert to_terminal == [text]
    assert (result.program, result.has_invisible) == ("xclip", False)
    assert result.line("the answer") == f"Copied the answer: {len(text)} characters"


@pytest.mark.parametrize(("name", "variables"), [("wl-copy", {}), ("xclip", {})])
def test_program_without_its_desktop_is_not_started(tmp_path: Path, name: str, variables: dict[str, str]) -> None:
    _program(tmp_path, name, f"/bin/cat; echo > {tmp_path}/started")
    assert _copy("x", tmp_path, **variables)[0].program == ""
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("script", ["exec /bin/sleep 30", "exec 0<&-; exec /bin/sleep 30"])
def test_hanging_program_is_killed(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.tui.clipboard._TIMEOUT_SECONDS", 0.05)
    _program(tmp_path, "pbcopy", f"echo $$ > {tmp_path}/pid; {script}")
    assert _copy("x" * 1_000_000, tmp_path)[0].program == ""
    if (pid := tmp_path / "pid").exists() and (number := pid.read_text().strip()):
        with pytest.raises(ProcessLookupError):
            os.kill(int(number), 0)


def test_long_text_goes_only_to_programs(tmp_path: Path) -> None:
    result, to_terminal = _copy("é" * (MAX_TERMINAL_BYTES // 2 + 1), tmp_path)
    assert to_terminal == []
    assert result.line("it").endswith("not copied")
    assert _copy("é" * (MAX_TERMINAL_BYTES // 2), tmp_path)[1]
    _program(tmp_path, "pbcopy", "/bin/cat > /dev/null")
    assert _copy("x" * (MAX_TERMINAL_BYTES + 1), tmp_path)[0].line("it").startswith("Copied it")


@pytest.mark.parametrize("text", ["\u202eevil", "\x9b"])
def test_invisible_characters_are_reported(tmp_path: Path, text: str) -> None:
    result, to_terminal = _copy(text, tmp_path)
    assert to_terminal == [text]
    assert result.line("it").endswith("; it has invisible characters")


def test_lone_surrogates_are_replaced(tmp_path: Path) -> None:
    result, to_terminal = _copy("a\ud800b\udc00", tmp_path)
    assert to_terminal == ["a\ufffdb\ufffd"]
    assert result.has_invisible
