"""The script that lists the product's messages."""

from pathlib import Path

import pytest

from localdflash.lab.scripts import messages

SOURCE = '''
@cli.command()
@click.option("--idle", help="seconds until it stops")
def serve(path, idle, say):
    """Run the daemon."""
    say("listening" if path else "waiting")
    say(path)
    if idle < 0:
        raise ValueError(f"{path}: invalid idle time "
                         f"(got {idle:.1f}); use 0 or more")
    raise RuntimeError(path + ": is gone")
'''


def test_messages_are_listed_with_line_and_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "serve.py"
    file.write_text(SOURCE)
    expected = [
        (3, "help", "seconds until it stops"),
        (4, "command", "Run the daemon."),
        (6, "say", "listening | waiting"),
        (9, "error", "{path}: invalid idle time (got {idle}); use 0 or more"),
        (11, "error", "{path}: is gone"),
    ]
    assert [message[1:] for message in messages.find_messages(file)] == expected
    messages.main([str(file), "--kind", "help"])
    assert capsys.readouterr().out == f"{file}:3: help: seconds until it stops\n"
