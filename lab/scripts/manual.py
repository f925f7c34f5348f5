"""Write the man page and the shell completions that packages install, from the commands' own help.

`python -P lab/scripts/manual.py FOLDER` writes localdflash.1, localdflash.bash, _localdflash (zsh), localdflash.fish
and localdflash.service, whose command is /usr/bin/localdflash, into FOLDER.
"""

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from localdflash.cli import COMPLETION_VARIABLE, cli, systemd_unit

SHELLS = {"bash": "localdflash.bash", "zsh": "_localdflash", "fish": "localdflash.fish"}
ENDING = r"""
.SH EXIT STATUS
0 done, 1 failed, 2 a wrong use of the command, 3 a bad model or file, 4 out of memory, 5 the GPU failed, 130
interrupted.
.SH ENVIRONMENT
.TP
.B LOCALDFLASH_HOME
The folder of settings, models, chats and sockets, instead of the platform's folders.
.SH FILES
.B localdflash config path
prints the path of the settings;
.B localdflash doctor
names the folders of models.
"""


def man_page() -> str:
    """Return localdflash(1): every command with its options."""
    context = click.Context(cli, info_name="localdflash", help_option_names=["-h", "--help"])
    summary, about = cli.help or "", "Commands share one daemon, which the first of them starts."
    parts = [
        '.TH LOCALDFLASH 1 "" localdflash "User Commands"',
        f".SH NAME\nlocaldflash \\- {_roff(summary.rstrip('.').lower())}",
        f".SH SYNOPSIS\n.B localdflash\n{_roff(' '.join(cli.collect_usage_pieces(context)))}",
        f".SH DESCRIPTION\n{_roff(summary)} {about}",
        ".SH OPTIONS",
        *_options(context),
        ".SH COMMANDS",
        *(text for name in cli.list_commands(context) for text in _section(name, cli, context)),
    ]
    return "\n".join(parts) + ENDING


def _section(name: str, group: click.Group, parent: click.Context) -> Iterator[str]:
    """Yield the roff of a command and of its own commands."""
    _, command, _ = group.resolve_command(parent, [name])
    assert command
    if command.hidden:
        return
    context = click.Context(command, info_name=name, parent=parent)
    yield f".SS {_roff(context.command_path)} {_roff(' '.join(command.collect_usage_pieces(context)))}"
    paragraphs = inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n")
    yield "\n.PP\n".join(map(_roff, paragraphs))
    yield from _options(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _section(inner, command, context)


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        if record := parameter.get_help_record(context):
            yield f".TP\n.B {_roff(record[0])}\n{_roff(record[1])}"


def _roff(text: str) -> str:
    """Escape plain text: no line of it is a request, and hyphens can be copied."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())


def completion(shell: str) -> str:
    """Return the script that completes localdflash's command line in a shell."""
    kind = get_completion_class(shell)
    assert kind
    return kind(cli, {}, "localdflash", COMPLETION_VARIABLE).source()


def main() -> None:
    """Write all files into the folder that the command line names."""
    parser = argparse.ArgumentParser(description="Write the man page, the completions and the systemd unit.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "localdflash.1").write_text(man_page(), "utf-8")
    for shell, name in SHELLS.items():
        (folder / name).write_text(completion(shell), "utf-8")
    (folder / systemd_unit.NAME).write_text(systemd_unit.unit(["/usr/bin/localdflash", "serve"], {}), "utf-8")


if __name__ == "__main__":
    main()
