import errno
import importlib
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import click
import pytest

from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory, UsageError
from localdflash.cli import COMMANDS, main
from localdflash.text.sanitize import printable

HEAVY = ("torch", "llama_cpp", "numpy", "transformers", "gguf", "jinja2", "huggingface_hub")


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes `localdflash doctor` raise what a test wants."""

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
    for name, entry in COMMANDS.items():
        assert any(line.split(maxsplit=1) == [name, entry.help] for line in out.splitlines())


@pytest.mark.parametrize("arguments", [["models", "list", "--json"]])
def test_light_commands_stay_light(arguments: list[str]) -> None:
    needed = ["numpy"] if "list" in arguments else []  # by the CPU engine, which is asked whether it is there
    done = python(
        f"import sys, time; from localdflash.cli import main; code = main({arguments!r});"
        f"print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr);"
        "sys.exit(code or time.process_time() > 1.0)"
    )
    assert (done.returncode, done.stderr) == (0, f"{needed}\n")


def test_help_imports_no_command() -> None:
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
        (MemoryError(), 4, "out of memory; close other programs or take a smaller pair or context"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), 1, "disk full while writing /x/y"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "disk full while writing the output"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "Permission denied: /x"),
        (click.UsageError("bad things."), 2, "bad things; see `localdflash doctor --help`"),
        (ValueError("odd"), 1, "internal error: ValueError: odd; run with --debug for the traceback"),
        (LocaldflashError("two\nlines \x1b[31m"), 1, "two\\nlines \\x1b[31m"),
    ],
)
def test_every_failure_is_one_line_and_a_code(
    error: BaseException, code: int, message: str, failing: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(error)
    assert main(["doctor"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("partial answer\n", f"localdflash: {message}\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_interrupted(error: BaseException, failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(error)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.parametrize(("result", "code"), [(None, 0), (1, 1), ("text", 0)])
def test_a_command_may_return_its_code(result: object, code: int, failing: Any) -> None:
    failing(None, result)
    assert main(["doctor"]) == code


def test_debug_adds_the_traceback(failing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failing(ModelError("x.gguf: broken"))
    assert main(["--debug", "doctor"]) == 3
    err = capsys.readouterr().err
    assert err.startswith("Traceback (most recent call last):\n")
    assert err.endswith("localdflash: x.gguf: broken\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["modles"], "no command 'modles'; did you mean 'models'?; see `localdflash --help`"),
        (["xyzzy"], "no command 'xyzzy'; see `localdflash --help`"),
        (["models", "show"], "see `localdflash models show --help`"),
    ],
)
def test_usage_errors(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("localdflash: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["models"]])
def test_no_arguments_show_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="pipes")
def test_a_closed_pipe_is_quiet() -> None:
    code = "import sys; from localdflash.cli import main; sys.exit(main(['models', 'list', '--json']))"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a shell")
def test_closed_streams_are_no_error() -> None:
    program = "import sys; from localdflash.cli import main; sys.exit(main(['models', 'list']))"
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
    ("text", "shown"),
    [("\x1b[2J\x07", "\\x1b[2J\\x07"), ("a\r\nb\t", "a\\r\\nb\\t"), ("\udcff", "\\udcff")],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
