"""`export`: the command on stdout, its requirements on stderr."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server"])
def test_printed_command_equals_the_json_arguments(engine: str, run: Callable[..., Any]) -> None:
    options = (engine, "qwen3-4b", "--context", 4096, "--draft-tokens", 7)
    done = run("export", *options)
    assert done.code == 0
    assert done.err.count("# needs ") == done.err.count("\n") >= 1
    assert "4096" in done.out
    document = run("export", *options, "--json")
    assert document.err == ""
    program, *arguments = json.loads(document.out)["argv"]
    assert json.loads(document.out)["needs"]
    shown = subprocess.run(
        ["sh", "-c", done.out.replace(program, 'printf "%s\\n"', 1)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == arguments
