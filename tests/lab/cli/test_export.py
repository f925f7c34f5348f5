"""`export`: the command on stdout, its requirements on stderr."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
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


def test_a_folder_gets_the_files_that_the_printed_command_names(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("export", "vllm", "embedded", "--folder", tmp_path, "--draft-tokens", 3, "--json")
    _, _, target, _, speculative, *_ = json.loads(done.out)["argv"]
    assert {path.name for path in Path(target).iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert json.loads(speculative)["num_speculative_tokens"] == 3
    assert Path(json.loads(speculative)["model"], "model.safetensors").is_file()


@pytest.mark.parametrize("options", [("sglang", "embedded"), ("vllm", "embedded", "--target", "owner/name")])
def test_a_folder_is_for_vllm_without_another_target(options: Any, run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("export", *options, "--folder", tmp_path / "out")
    assert done.code == 2
    assert "--folder" in done.err


def test_a_folder_takes_at_most_the_drafts_of_the_drafter(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("export", "vllm", "embedded", "--folder", tmp_path / "out", "--draft-tokens", 40)
    assert done.code == 2
    assert "at most 7" in done.err
