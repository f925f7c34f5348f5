"""Command line: help, imports, errors and exit codes."""

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from localdflash import __version__
from localdflash.base.errors import DeviceError, LocaldflashError, ModelError, OutOfMemory, UsageError
from localdflash.cli import COMMANDS, main
from localdflash.cli.options import requested_engine

HEAVY = ("torch", "llama_cpp", "numpy", "transformers", "gguf", "jinja2", "huggingface_hub")


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that replaces `localdflash doctor` by a command with this error or result."""

    def install(error: BaseException | None, result: object = None) -> None:
        @click.command()
        def command() -> object:
            click.echo("partial answer")
            if error is not None:
                raise error
            return result

        real = importlib.import_module
        fake = SimpleNamespace(command=command)
        monkeypatch.setattr(importlib, "import_module", lambda name: fake if "doctor" in name else real(name))

    return install


def test_help_lists_every_command_without_importing_any(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name, (_, line) in COMMANDS.items():
        assert any(shown.split(maxsplit=1) == [name, line] for shown in out.splitlines())


def test_the_module_and_its_version_need_no_package_metadata() -> None:
    program = "import importlib.metadata, runpy, sys; importlib.metadata.version = None; sys.argv[1:] = ['--version'];"
    done = python(program + "runpy.run_module('localdflash', run_name='__main__')")
    assert (done.stdout, done.stderr, done.returncode) == (f"localdflash {__version__}\n", "", 0)


def test_models_list_imports_no_heavy_library() -> None:
    done = python(
        "import sys; from localdflash.cli import main; code = main(['models', 'list', '--json']);"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr); sys.exit(code)"
    )
    assert (done.returncode, done.stderr) == (0, "['numpy']\n")  # the CPU engine's library needs numpy


def test_a_client_of_the_daemon_imports_no_heavy_library_and_help_no_command() -> None:
    chat = "localdflash.cli.chat_command, localdflash.cli.console_chat"
    done = python(f"import sys, {chat}; print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)")
    assert done.stderr == "[]\n"
    done = python(
        "import sys; from localdflash.cli import main; main(['--help']);"
        "print(*sorted(m for m in sys.modules if m.startswith('localdflash.')), file=sys.stderr)"
    )
    assert done.stderr.split() == [
        f"localdflash.{name}" for name in ("base", "base.errors", "cli", "text", "text.sanitize")
    ]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LocaldflashError("what, where, what to do"), 1, "what, where, what to do"),
        (UsageError("no sense"), 2, "no sense"),
        (OutOfMemory("12 GB do not fit into 8"), 4, "12 GB do not fit into 8"),
        (DeviceError("CUDA error 700"), 5, "CUDA error 700"),
        (MemoryError(), 4, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "/x/y"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "output"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "Permission denied"),
        (OSError(errno.EIO, "Input/output error"), 1, "localdflash: Input/output error: the output\n"),
        (FileNotFoundError(errno.ENOENT, "No such file"), 1, "localdflash: No such file\n"),
        (click.UsageError("bad things."), 2, "bad things; see `localdflash doctor --help`"),
        (ValueError("odd"), 1, "ValueError: odd"),
        (LocaldflashError("two\nlines \x1b[31m\udcff"), 1, "two\\nlines \\x1b[31m\\udcff"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    error: BaseException, code: int, message: str, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)
    assert main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert out == "partial answer\n"
    assert message in err
    assert err.count("\n") <= 1
    assert err.startswith("localdflash: ") or err.strip() == message


@pytest.mark.skipif(sys.platform == "win32", reason="the folder of a process cannot be deleted")
def test_deleted_current_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    failing(FileNotFoundError(errno.ENOENT, "No such file or directory"))  # of `os.getcwd`
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "localdflash: the current folder no longer exists; change to another folder\n"


def test_debug_adds_the_traceback(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(ModelError("x.gguf: broken"))
    assert main(["--debug", "doctor"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("localdflash: x.gguf: broken\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["modles"], "'modles'. Did you mean 'models'?; see `localdflash --help`"),
        (["xyzzy"], "'xyzzy'; see `localdflash --help`"),
        (["models", "show"], "see `localdflash models show --help`"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), message in err) == ("", 1, True)
    assert main(arguments[:-1]) == 2  # a group without a command shows its help
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes, a shell")
def test_closed_pipes_and_streams_are_quiet() -> None:
    program = "import sys; from localdflash.cli import main; sys.exit(main(['models', 'list', '--json']))"
    command = [sys.executable, "-P", "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
    closed = ("sh", "-c", 'exec "$0" -P -c "$1" >&- 2>&-', sys.executable, program)
    assert subprocess.run(closed, check=False).returncode == 0


def test_an_ascii_terminal_gets_escapes() -> None:
    code = (
        "import click, sys, types; from localdflash import cli;"
        "sys.modules['localdflash.cli.doctor.command'] = types.SimpleNamespace("
        "command=click.Command('doctor', callback=lambda: print('né')));"
        "sys.exit(cli.main(['doctor']))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-X", "utf8=0", "-c", code],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, [b"n\\xe9"], b"")


@pytest.mark.parametrize(
    ("pair", "requested"),
    [
        ("embedded", "embedded"),
        ("hf:owner/name", "hf:owner/name"),
        ("~nobody-has-this-name/m.gguf", os.path.abspath("~nobody-has-this-name/m.gguf")),
    ],
)
def test_paths_of_models_become_absolute(pair: str, requested: str) -> None:
    @click.command()
    @click.pass_context
    def command(ctx: click.Context) -> Any:
        return requested_engine(ctx, {"pair": pair, "drafter": ""})

    assert command.main([], standalone_mode=False).options["pair"] == requested
