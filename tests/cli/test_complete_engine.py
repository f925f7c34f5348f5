"""Completions by the daemon: the same as without it, and none is lost with the daemon."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import CODE, FINISHES
from tests.support import daemons

pytestmark = [pytest.mark.system, pytest.mark.transport]


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.usefixtures("short_home")
def test_the_daemon_gives_the_same_insertion(file: Path, long_file: Path, run: Callable[..., Any]) -> None:
    file.write_bytes(CODE.replace("\n", "\r\n").encode())
    for arguments in (
        (f"{file}:3:5",),
        (f"{file}:5:7",),
        (f"{file}:3:5", "--temperature", "0.9", "--seed", "7"),
        (f"{long_file}:1001:6", "--max-tokens", 30, "--explain"),
    ):
        here = run("complete", *arguments, "--no-daemon", "--threads", 1)
        assert run("complete", *arguments, "--threads", 1) == here
        assert here.code == 0
    told = json.loads(run("complete", f"{long_file}:1001:6", "--threads", 1, "--json").out)
    assert (told["finish"] in FINISHES, "prompt" in told) == (True, False)
    assert told["steps"] + told["accepted"] == told["tokens"]


@pytest.mark.usefixtures("short_home")
def test_no_draft_completes_without_drafting_and_starts_no_daemon(file: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{file}:3:5", "--threads", 1, "--json")
    plain = json.loads(run(*arguments, "--no-draft").out)
    assert plain["steps_by_drafter"] == {"none": plain["tokens"]}
    assert not daemons.is_ready()
    assert json.loads(run(*arguments, "--no-daemon").out)["insertion"] == plain["insertion"]


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_a_daemon_that_was_killed_is_started_again(file: Path, short_home: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{file}:3:5", "--threads", 1)
    first = run(*arguments)
    (daemon,) = daemons.daemons(short_home)
    daemon.kill()
    daemon.wait(10)
    assert run(*arguments) == first
