"""`localdflash complete` where the settings name a remote server."""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.foreign.made_up import Said, in_thread, llama

STREAM = "text/event-stream"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the settings name a server."""
    return lambda url: monkeypatch.setenv("LOCALDFLASH_SERVER_URL", url)


def test_errors_are_one_line(file: Path, fails: Callable[..., str], at: Callable[[str], None]) -> None:
    no = Said({"error": {"message": "Infill is not supported by this model"}}, 501)
    with in_thread(llama(markers={}, infill=no)) as server:
        at(server.url)
        assert "fill in the middle" in fails(3, "complete", f"{file}:3:5")
        assert "--explain" in fails(2, "complete", f"{file}:3:5", "--explain")
    assert server.url in fails(1, "complete", f"{file}:3:5")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_stops_the_server(file: Path, run: Callable[..., Any], at: Callable[[str], None]) -> None:
    first = b'data: {"content":"return first(","tokens":[1]}\n\n'

    def press() -> None:
        while not server.bodies("/completion"):
            time.sleep(0.01)
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with in_thread(llama(completion=Said(stream=[first], kind=STREAM, hangs=True))) as server:
        at(server.url)
        finger = threading.Thread(target=press)
        finger.start()
        done = run("complete", f"{file}:3:5", "--json")
        finger.join()
        deadline = time.monotonic() + 5
        while not server.left.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.left.is_set()
    assert (done.code, json.loads(done.out)["finish"]) == (130, "cancelled")
