"""Shell completion, in the shells: Tab is pressed, and the screen read. Those that are not installed are skipped."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.cli import main
from localdflash.lab.scripts.support.terminal import Terminal

PROGRAM = Path(sys.executable).parent / "localdflash"
PAGE = Path(__file__).parent.parent.parent / "docs" / "install.md"
BARE = {  # each without its user's configuration, with a prompt that is known
    "bash": ["--noprofile", "--norc", "-i"],
    "zsh": ["-f", "-i"],
    "fish": ["--no-config", "--interactive"],
}
FIRST = {  # what a configuration usually does, and the echo that Terminal turns off
    "bash": "PS1='>> '; stty echo",
    "zsh": "PROMPT='>> '; autoload -Uz compinit && compinit -u -D",
    "fish": "function fish_prompt; echo -n '>> '; end",
}


def line_of(shell: str) -> str:
    """The line that docs/install.md has for a shell's configuration."""
    return next(line.split("  # ")[0] for line in PAGE.read_text("utf-8").splitlines() if f"{shell}_source" in line)


@pytest.fixture(params=list(BARE))
def shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A shell with its completion set up as docs/install.md says, in a folder with one file."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"no {request.param} here")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "unlikely.py").touch()
    monkeypatch.setenv("PATH", str(PROGRAM.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    with Terminal.start([program, *BARE[request.param]], cwd=str(folder), cols=160) as terminal:
        for line in (FIRST[request.param], line_of(request.param), "clear; echo re''ady"):
            terminal.type(f"{line}\r")
        terminal.wait_for("ready\n>>")
        yield terminal


@pytest.mark.system
def test_commands_options_and_values(shell: Terminal) -> None:
    shell.type("localdflash comp\t")
    shell.wait_for(">> localdflash complete")
    shell.type("--expl\t")
    shell.wait_for("complete --explain")
    shell.type("--backend llam\t")
    shell.wait_for("--backend llama.cpp")


@pytest.mark.system
def test_pairs(shell: Terminal) -> None:
    shell.type("localdflash models pull smollm2-135m-\t")
    shell.wait_for("pull smollm2-135m-code")


@pytest.mark.system
def test_files(shell: Terminal) -> None:
    shell.type("localdflash complete unl\t")
    shell.wait_for("complete unlikely.py")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("localdflash se", ["plain,serve"]),
        ("localdflash chat --role rev", ["plain,reviewer"]),
        ("localdflash chat --pair emb", ["plain,embedded"]),
        ("localdflash chat --pair ./em", ["file,./em"]),
    ],
)
def test_what_is_offered(
    words: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(words, monkeypatch) == 0
    assert capsys.readouterr() == ("".join(f"{line}\n" for line in offered), "")


def test_broken_settings_say_nothing_into_the_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text("pair = [", "utf-8")
    asked("localdflash chat --pair emb", monkeypatch)
    assert capsys.readouterr().err == ""


def asked(words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """What a shell does at Tab: the exit code."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_LOCALDFLASH_COMPLETE", "bash_complete")
    try:
        return main([])
    except SystemExit as left:
        return int(left.code or 0)
