"""No telemetry: the processes of an answer and of a completion connect only to this machine.

Every Python that starts has an audit hook, which writes down each address outside this machine and ends the process.
Python raises no audit events for sockets of native code: `tests/security/test_no_foreign_code.py` and the dependencies'
authors are trusted there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import daemons

HOOK = """
import ipaddress, os, socket, sys

def is_here(host):
    host = host.decode() if isinstance(host, bytes) else host
    try:
        return host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

def hook(event, arguments):
    match event:
        case "socket.connect" | "socket.sendto" | "socket.sendmsg":
            connection, address = arguments[0], arguments[1]
            if connection.family == getattr(socket, "AF_UNIX", None) or not address or is_here(address[0]):
                return
        case "socket.getaddrinfo" | "socket.gethostbyname":
            address = arguments[0]
            if is_here(address):
                return
        case _:
            return
    with open(os.environ["REACHED"], "a") as file:
        print(event, address, sys.argv, file=file)
    os._exit(99)

sys.addaudithook(hook)
"""
PYTHON = [sys.executable, "-P", "-c"]
CODE = "def add(first, second):\n    "


@pytest.fixture
def reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the hook with a user's settings; return the file that lists reached addresses."""
    (tmp_path / "hooked").mkdir()
    (tmp_path / "hooked" / "sitecustomize.py").write_text(HOOK, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hooked"))
    monkeypatch.setenv("REACHED", str(tmp_path / "reached"))
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "cpu")
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "reached"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("socket(type=SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 80))", 99),
        ("getaddrinfo('example.org', 80)", 99),
        ("getaddrinfo('localhost', 80)", 0),
        ("socket().connect_ex(('127.0.0.1', 1))", 0),
    ],
)
def test_the_hook_ends_a_process_that_reaches_out(call: str, code: int, reached: Path) -> None:
    done = subprocess.run([*PYTHON, f"from socket import *; {call}"], stderr=subprocess.PIPE, check=False)
    assert done.returncode == code, done.stderr
    assert reached.exists() == (code == 99)


@pytest.mark.system
@pytest.mark.usefixtures("cpu_engine")
@pytest.mark.parametrize("daemon", [("--no-daemon",), ()], ids=["private engine", "daemon"])
def test_an_answer_and_a_completion_reach_nothing_but_this_machine(
    daemon: tuple[str, ...], reached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "add.py").write_text(CODE, "utf-8")
    with daemons.short_home(monkeypatch):
        for command in (["chat", "-p", "hi"], ["complete", f"{tmp_path / 'add.py'}:2:5"], ["models", "list"]):
            options = daemon if command[0] != "models" else ()
            done = subprocess.run(
                [*PYTHON, daemons.PROGRAM, *command, *options],
                env=os.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            assert not reached.exists(), reached.read_text()
            assert done.returncode == 0, done.stderr
            assert done.stdout.strip()
