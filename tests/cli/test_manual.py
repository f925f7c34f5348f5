"""Man page and shell completion files: complete, and accepted by groff and the shells."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from localdflash.cli import cli
from localdflash.lab.scripts import manual


def commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield the path and the command of each visible command."""
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command
        if not command.hidden:
            own = click.Context(command, info_name=name, parent=context)
            yield own.command_path, command
            if isinstance(command, click.Group):
                yield from commands(command, own)


def test_the_man_page_names_every_command_and_option(tmp_path: Path) -> None:
    page = manual.man_page()
    known = dict(commands(cli, click.Context(cli, info_name="localdflash")))
    assert len(known) > 15
    for path, command in known.items():
        assert f".SS {path} ".replace("-", "\\-") in page, path
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0].replace("-", "\\-") in page, (path, option.opts)
    if not (groff := shutil.which("groff")):
        pytest.skip("no groff here")
    (tmp_path / "localdflash.1").write_text(page)
    shown = subprocess.run(
        [groff, "-man", "-ww", "-Kutf8", "-Tutf8", str(tmp_path / "localdflash.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stderr == ""
    assert "localdflash models pull" in re.sub(".\b", "", shown.stdout)  # bold is each letter twice


@pytest.mark.parametrize("shell", manual.SHELLS)
def test_completion_files_ask_localdflash(shell: str, tmp_path: Path) -> None:
    text = manual.completion(shell)
    assert f"_LOCALDFLASH_COMPLETE={shell}_complete" in text
    if program := shutil.which(shell):
        (tmp_path / "completion").write_text(text)
        subprocess.run([program, "-n", str(tmp_path / "completion")], check=True)
