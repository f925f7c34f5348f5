"""Command line. The module of a command is imported only when the command is called, so that `--help` is instant.

Answers go to stdout, everything else to stderr. A failure prints one line. Exit codes: 0 done, 1 failed, 2 usage error,
3 bad model or file, 4 out of memory, 5 GPU lost, 130 interrupted. `--debug` adds the traceback.
"""

import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from localdflash import __version__
from localdflash.base.errors import LocaldflashError, OutOfMemory
from localdflash.text.sanitize import printable

INTERRUPTED = 130
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)  # of stdout, if no file is named
COMPLETION_VARIABLE = "_LOCALDFLASH_COMPLETE"  # set by the shell when it completes a command line
# How often an idle llama.cpp thread spins before it sleeps. With libgomp's default of 300 000, a step loses whole time
# slices if another program needs the processor (docs/log/2026-11-21-daemon-latency.md).
SPIN_COUNT = "10000"

COMMANDS = {  # module, and line in `--help`, by name of the command
    "chat": ("localdflash.cli.chat_command", "Chat with the model, or answer one prompt."),
    "complete": ("localdflash.cli.complete_command", "Complete the code at FILE:LINE:COL."),
    "serve": ("localdflash.cli.serve", "Run the daemon that editors and the other commands share."),
    "lsp": ("localdflash.cli.lsp", "Serve completions to an editor (language server)."),
    "stats": ("localdflash.cli.stats_command", "Count suggestions made, accepted and kept."),
    "bench": ("localdflash.lab.cli.bench_command", "Measure speed, latency and quality on this machine."),
    "models": ("localdflash.cli.models_command", "List, download and remove pairs of target and drafter."),
    "train": ("localdflash.lab.cli.train_command", "Train a target or a drafter."),
    "export": ("localdflash.lab.cli.export_command", "Print how to run a pair in vLLM, SGLang or llama-server."),
    "connect": ("localdflash.cli.connect_command", "Set up a coding agent to use the daemon."),
    "config": ("localdflash.cli.config_command", "Show or change settings."),
    "doctor": ("localdflash.cli.doctor.command", "Check hardware, libraries and models."),
}


class LazyGroup(click.Group):
    """Group of stubs with a help line each. When a command is called, its module is imported and replaces the stub."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **options, commands=[click.Command(name, short_help=line) for name, (_, line) in COMMANDS.items()]
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command itself instead of its stub."""
        name, stub, rest = super().resolve_command(ctx, args)
        return name, stub and importlib.import_module(COMMANDS[str(name)][0]).command, rest


def _set_debug(context: click.Context, _option: click.Parameter, value: bool) -> None:
    context.ensure_object(dict)["debug"] = value


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, is_eager=True, expose_value=False, callback=_set_debug, help="Show tracebacks.")
@click.version_option(__version__, message="%(prog)s %(version)s", help="Show the version.")
def cli() -> None:
    """Run a local coding assistant: a quantized model and a drafter that makes it fast, offline."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # so that an answer can be printed on an ASCII terminal
    run = {"debug": False}
    try:
        result = cli.main(arguments, prog_name="localdflash", standalone_mode=False, obj=run)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        if COMPLETION_VARIABLE in os.environ:
            return 1  # without output, which the shell would print into the line being typed
        if run["debug"]:
            traceback.print_exception(error)
        return _report(error)
    return result if isinstance(result, int) else 0


def _report(error: BaseException) -> int:
    match error:
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case BrokenPipeError():  # Python would report it again when it flushes stdout at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case _:
            message, code = _explain(error)
    print(f"localdflash: {printable(message)}", file=sys.stderr)
    return code


def _explain(error: BaseException) -> tuple[str, int]:
    match error:
        case LocaldflashError():
            return str(error), error.exit_code
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "localdflash"
            return f"{error.format_message().rstrip('.')}; see `{command} --help`", error.exit_code
        case click.ClickException():
            return error.format_message(), error.exit_code
        case MemoryError():
            return "out of memory; close other programs or use a smaller pair or context", OutOfMemory.exit_code
        case OSError(errno=int()):
            return _explain_os_error(error), 1
        case _:
            return f"internal error: {type(error).__name__}: {error}; run with --debug for the traceback", 1


def _explain_os_error(error: OSError) -> str:
    if error.errno == errno.ENOENT and not error.filename and not _has_current_folder():
        return "the current folder no longer exists; change to another folder"
    subject = error.filename or ("the output" if error.errno in _WRITE_ERRORS else "")
    if error.errno == errno.ENOSPC:
        return f"disk full while writing {subject}"
    return f"{error.strerror}: {subject}" if subject else str(error.strerror)


def _has_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True
