"""Notices while a pair loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device


@pytest.mark.usefixtures("without_cpu_engine")
def test_a_fallback_is_one_line_on_stderr(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "driver_present", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "auto")
    source = tmp_path / "a.py"
    source.write_text("def add(a, b):\n    return \n")
    for command in (("complete", f"{source}:2:12"), ("chat", "-p", "Hi", "--temperature", 0)):
        done = run(*command, "--max-tokens", 200, "--threads", 1, "--no-daemon")
        assert done.code == 0
        (line,) = [line for line in done.err.splitlines() if "CUDA engine" in line]
        assert "llama.cpp runs this pair" in line
        assert "PyTorch" in line
