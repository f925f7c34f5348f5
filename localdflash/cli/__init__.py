"""The command line. A command's module is imported when the command is called, so that `--help` stays instant.

Answers go to stdout, everything else to stderr. Every failure is one line and an exit code: 0 done, 1 failed, 2 usage,
3 bad model or file, 4 out of memory, 130 interrupted. `--debug` adds the traceback.
"""

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from localdflash.base.errors import LocaldflashError, OutOfMemory
from localdflash.text.sanitize import printable

INTERRUPTED = 130
COMPLETES = "_LOCALDFLASH_COMPLETE"  # click's name for it
# How long a thread of llama.cpp spins before it sleeps: libgomp's own 300 000 make a step wait for whole time slices of
# the scheduler as soon as another program wants the processor too (docs/log/2026-11-21-daemon-latency.md).
SPINS = "10000"


class CommandEntry(NamedTuple):
    """A command: where it is defined (`module:attribute`) and its line in `--help`."""

    place: str
    help: str


COMMANDS = {
    "chat": CommandEntry("localdflash.cli.chat_command:command", "Chat with the model, or answer one prompt."),
    "complete": CommandEntry("localdflash.cli.complete_command:command", "Complete the code at FILE:LINE:COL."),
    "serve": CommandEntry("localdflash.cli.serve:command", "Run the engine that editors and the other commands share."),
    "lsp": CommandEntry("localdflash.cli.lsp:command", "Serve completions to an editor (language server)."),
    "bench": CommandEntry(
        "localdflash.lab.cli.bench_command:command", "Measure speed, latency and quality on this machine."
    ),
    "models": CommandEntry(
        "localdflash.cli.models_command:command", "List, download and remove pairs of target and drafter."
    ),
    "train": CommandEntry("localdflash.lab.cli.train_command:command", "Train a target or a drafter."),
    "export": CommandEntry(
        "localdflash.cli.export_command:command", "Print how to run a pair in vLLM, SGLang or llama-server."
    ),
    "config": CommandEntry("localdflash.cli.config_command:command", "Show or change settings."),
    "doctor": CommandEntry("localdflash.cli.doctor.command:command", "Check hardware, libraries and models."),
}


class LazyGroup(click.Group):
    """A group that lists its commands without importing them, and imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See click."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].place.split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See click; suggests what was meant, which older versions do not."""
        if args[0] not in COMMANDS:
            from localdflash.base.files.strict_toml import did_you_mean

            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """See click, which would import every command for this."""
        named = [
            CompletionItem(name, help=entry.help) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See click."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


@dataclass
class GlobalOptions:
    """The values of the global options."""

    debug: bool = False


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    context.ensure_object(GlobalOptions).debug = value


def _show_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(f"localdflash {version('localdflash')}")
    except PackageNotFoundError:
        click.echo("localdflash, from a source tree that is not installed")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, is_eager=True, expose_value=False, callback=_set_debug, help="Show tracebacks.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
def cli() -> None:
    """Run a local coding assistant: a quantized model and a drafter that makes it fast, offline."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an ASCII terminal must not turn an answer into a failure
    run = GlobalOptions()
    try:
        result = cli.main(arguments, prog_name="localdflash", standalone_mode=False, obj=run)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if COMPLETES in os.environ:
            return 1  # a shell asks what may come next: whatever is said lands in the line that is being typed
        if run.debug:
            traceback.print_exception(error)
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: BaseException) -> int:
    """Print an error to stderr as one line; return the exit code."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():
            # Nobody reads any more; Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case _:
            message, code = _explain(error)
    print(f"localdflash: {printable(message)}", file=sys.stderr)
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of an error."""
    match error:
        case LocaldflashError():
            return str(error), error.exit_code
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "localdflash"
            return f"{error.format_message().rstrip('.')}; see `{command} --help`", error.exit_code
        case click.ClickException():
            return error.format_message(), error.exit_code
        case MemoryError():
            return "out of memory; close other programs or take a smaller pair or context", OutOfMemory.exit_code
        case OSError(errno=int()):
            what = "disk full while writing" if error.errno == errno.ENOSPC else f"{error.strerror}:"
            return f"{what} {error.filename or 'the output'}", 1
        case _:
            return f"internal error: {type(error).__name__}: {error}; run with --debug for the traceback", 1
