"""Shell completion in real shells, in a pseudo-terminal. Shells that are not installed are skipped."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from localdflash.cli import main
from localdflash.lab.scripts.support.terminal import Terminal

PROGRAM = Path(sys.executable).parent / "localdflash"
PAGE = Path(__file__).parent.parent.parent / "docs" / "install.md"
# Arguments for a shell without the user's configuration; then commands that set a known prompt, and echo.
BARE = {"bash": ["--noprofile", "--norc", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "--interactive"]}
FIRST = {
    "bash": "PS1='>> '; stty echo",
    "zsh": "PROMPT='>> '; autoload -Uz compinit && compinit -u -D",
    "fish": "function fish_prompt; echo -n '>> '; end",
}


def line_of(shell: str) -> str:
    """Return the line of docs/install.md for a shell's configuration."""
    return next(line.split("  # ")[0] for line in PAGE.read_text("utf-8").splitlines() if f"{shell}_source" in line)


@pytest.fixture(params=list(BARE))
def shell(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Yield a shell with its completion set up as docs/install.md says, in a folder with one file."""
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
@pytest.mark.parametrize(
    "keys",
    [
        (("localdflash comp", ">> localdflash complete"), ("--expl", "--explain"), ("--backend llam", " llama.cpp")),
        (("localdflash models pull smollm2-135m-", "pull smollm2-135m-code"),),
        (("localdflash complete unl", "complete unlikely.py"),),
    ],
    ids=["commands, options, values", "pairs", "files"],
)
def test_tab_completes_words(keys: tuple[tuple[str, str], ...], shell: Terminal) -> None:
    for typed, completed in keys:
        shell.type(f"{typed}\t")
        shell.wait_for(completed)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("localdflash se", "plain,serve\n"),
        ("localdflash chat --role rev", "plain,reviewer\n"),
        ("localdflash chat --pair emb", "plain,embedded\n"),
        ("localdflash chat --pair ./em", "file,./em\n"),
    ],
)
def test_completions_are_offered_and_errors_stay_out_of_the_line(
    words: str, offered: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_LOCALDFLASH_COMPLETE", "bash_complete")
    with pytest.raises(SystemExit) as exited:
        main([])
    assert (exited.value.code, *capsys.readouterr()) == (0, offered, "")
    (home / "config").mkdir(parents=True)
    (home / "config" / "config.toml").write_text("pair = [", "utf-8")
    with suppress(SystemExit):
        main([])
    assert capsys.readouterr().err == ""
