"""Notices, errors and the progress bar while a pair loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device
from localdflash.cli.doctor.gpu_check import LoadingBar


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


def test_a_bar_appears_only_after_a_while_and_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    quick, bar = LoadingBar(), LoadingBar()
    quick(5, 10)
    assert capsys.readouterr().err == ""
    bar._began -= 60
    bar(3 * 10**9, 6 * 10**9)
    bar(3 * 10**9 + 1, 6 * 10**9)  # nothing new to draw
    assert capsys.readouterr().err == "\rloading [###############...............] 3.0 of 6.0 GB"
    bar(6 * 10**9, 6 * 10**9)
    assert capsys.readouterr().err.strip("\r ") == ""
    bar.compiling(18, 37)
    assert capsys.readouterr().err == "\rcompiling [##############................] 18 of 37"
    bar.compiling(37, 37)
    assert capsys.readouterr().err.strip("\r ") == ""
