"""Completions by the shared engine: the same ones, and no end of an engine loses any."""

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
@pytest.mark.parametrize("options", [(), ("--temperature", "0.9", "--seed", "7")])
def test_the_engine_gives_the_same_insertion(options: tuple[str, ...], file: Path, run: Callable[..., Any]) -> None:
    file.write_bytes(CODE.replace("\n", "\r\n").encode())
    for place in (f"{file}:3:5", f"{file}:5:7"):
        here = run("complete", place, *options, "--no-daemon", "--threads", 1)
        assert run("complete", place, *options, "--threads", 1) == here
        assert here.code == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
@pytest.mark.usefixtures("short_home")
def test_the_engine_explains_as_the_command_does(long_file: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{long_file}:1001:6", "--threads", 1, "--max-tokens", 30)
    assert run(*arguments, "--explain") == run(*arguments, "--explain", "--no-daemon")
    told = json.loads(run(*arguments, "--json").out)
    assert told["finish"] in FINISHES
    assert "prompt" not in told
    assert told["steps"] + told["accepted"] == told["tokens"]


@pytest.mark.usefixtures("short_home")
def test_no_draft_completes_without_drafting_and_leaves_no_engine(file: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{file}:3:5", "--threads", 1, "--json")
    plain = json.loads(run(*arguments, "--no-draft").out)
    assert plain["steps_by_drafter"] == {"none": plain["tokens"]}
    assert not daemons.is_ready()
    assert json.loads(run(*arguments, "--no-daemon").out)["insertion"] == plain["insertion"]


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_an_engine_that_was_killed_is_started_again(file: Path, short_home: Path, run: Callable[..., Any]) -> None:
    arguments = ("complete", f"{file}:3:5", "--threads", 1)
    first = run(*arguments)
    (daemon,) = daemons.daemons(short_home)
    daemon.kill()
    daemon.wait(10)
    assert run(*arguments) == first
