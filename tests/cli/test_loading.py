"""What the user sees while a pair loads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device
from localdflash.cli.doctor.gpu_check import _Bar


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
        assert done.err.startswith("llama.cpp runs this pair, not the CUDA engine: this PyTorch")
        assert sum("CUDA engine" in line for line in done.err.splitlines()) == 1


def test_asked_for_cuda_without_one(fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "driver_present", lambda: False)
    said = fails(1, "complete", f"{__file__}:1:1", "--backend", "cuda", "--no-daemon")
    assert said == "no NVIDIA driver was found: install it, or use --backend llama.cpp"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--backend", "cuda", "--device", "1"], "no NVIDIA driver was found: install it, or use --backend llama.cpp"),
        (["--backend", "auto", "--device", "1"], "--device 1: llama.cpp has no such GPU, "),
        (["--backend", "cuda", "--device", "cpu"], "--device cpu: not a device of --backend cuda; cuda and llama.cpp"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_gpu_that_is_named_where_there_is_none(
    options: list[str], said: str, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "driver_present", lambda: False)
    code = 1 if "has no" in said or "no NVIDIA" in said else 2
    assert fails(code, "complete", f"{__file__}:1:1", *options, "--no-daemon").startswith(said)


def test_a_bar_appears_only_where_it_takes_long_and_goes_away(capsys: pytest.CaptureFixture[str]) -> None:
    quick, slow = _Bar(), _Bar()
    quick(5, 10)
    assert capsys.readouterr().err == ""
    slow._began -= 60
    slow(3 * 10**9, 6 * 10**9)
    slow(3 * 10**9 + 1, 6 * 10**9)  # nothing new to draw
    assert capsys.readouterr().err == "\rloading [###############...............] 3.0 of 6.0 GB"
    slow(6 * 10**9, 6 * 10**9)
    assert capsys.readouterr().err.strip("\r ") == ""


def test_kernels_are_counted_in_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    bar = _Bar()
    bar._began -= 60
    bar(6 * 10**9, 6 * 10**9)
    capsys.readouterr()
    bar.compiling(18, 37)
    assert capsys.readouterr().err == "\rcompiling [##############................] 18 of 37"
    bar.compiling(37, 37)
    assert capsys.readouterr().err.strip("\r ") == ""
