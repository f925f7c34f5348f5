"""`export`: the command on stdout, what it needs on stderr."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.registry_entries import UNREAD, register


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server"])
def test_stdout_is_the_command_and_nothing_else(engine: str, run: Callable[..., Any]) -> None:
    done = run("export", engine, "qwen3-4b", "--context", 4096, "--draft-tokens", 7)
    assert done.code == 0
    assert all(line.startswith("# needs ") for line in done.err.splitlines())
    assert done.err.count("\n") >= 1
    *lines, last = done.out.splitlines()
    assert all(line.endswith(" \\") for line in lines)
    assert all(len(shlex.split(line.removesuffix("\\"))) == 2 for line in [*lines[1:], last])
    assert "4096" in done.out


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama-server"])
def test_json_is_what_a_shell_makes_of_the_command(engine: str, run: Callable[..., Any]) -> None:
    command = run("export", engine, "qwen3-8b").out
    done = run("export", engine, "qwen3-8b", "--json")
    document = json.loads(done.out)
    assert done.err == ""
    assert document["needs"]
    program = document["argv"][0]
    shown = subprocess.run(
        ["sh", "-c", command.replace(program, 'printf "%s\\n"', 1)], capture_output=True, text=True, check=True
    )
    assert shown.stdout.splitlines() == document["argv"][1:]


def test_another_drafter_and_another_target(run: Callable[..., Any]) -> None:
    done = run(
        *("export", "sglang", "qwen3-4b", "--drafter", "hf:some/drafter/model.safetensors"),
        *("--target", "Qwen/Qwen3-4B-AWQ", "--json"),
    )
    argv = json.loads(done.out)["argv"]
    assert argv[argv.index("--speculative-draft-model-path") + 1] == "some/drafter"
    assert argv[argv.index("--model-path") + 1] == "Qwen/Qwen3-4B-AWQ"


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ["ollama", "qwen3-4b"], "'ollama' is not one of 'vllm', 'sglang', 'llama-server'"),
        (3, ["vllm", "embedded"], "export it to llama-server"),
        (2, ["vllm", "qwen3-4b", "--target", "nowhere"], "--target 'nowhere'"),
        (2, ["vllm", "qwen3-4b", "--draft-tokens", "0"], "--draft-tokens"),
        (3, ["llama-server", "/nowhere.gguf"], "/nowhere.gguf"),
    ],
)
def test_what_cannot_be_exported(
    code: int, arguments: list[str], said: str, home: Path, fails: Callable[..., str]
) -> None:
    register(home, UNREAD)
    assert said in fails(code, "export", *arguments)
