"""Why a machine has no usable GPU, with what to do; and errors on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda.runner import Runner, device_errors
from localdflash.base import extras
from localdflash.base.errors import DeviceError, NoDevice


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine that seems to have an RTX 4090; the returned patcher takes something away from it."""
    monkeypatch.setattr(devices, "driver_present", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "RTX 4090")
    return monkeypatch


def raise_(error: Exception) -> Any:
    raise error


TOO_OLD = RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")


@pytest.mark.parametrize(
    ("owner", "name", "value", "words"),
    [
        (devices, "driver_present", lambda: False, r"NVIDIA driver.*--backend llama\.cpp"),
        (torch.version, "cuda", None, "install a CUDA build"),
        (torch.cuda, "init", lambda: raise_(TOO_OLD), r"too old \(found version 11040\).*update the NVIDIA driver"),
        (extras, "find_spec", lambda name: None if name == "triton" else name, r"triton is not .*localdflash\[cuda\]"),
        (torch.cuda, "get_device_capability", lambda _device: (7, 5), r"4090 .* 7\.5.* 8\.0"),
    ],
    ids=["no driver", "a CPU build of torch", "an old driver", "no Triton", "an old chip"],
)
def test_missing_requirements_are_reported_in_one_line(
    owner: Any, name: str, value: Any, words: str, gpu: pytest.MonkeyPatch
) -> None:
    assert devices.find_device() == torch.device("cuda", 0)
    gpu.setattr(owner, name, value)
    with pytest.raises(NoDevice, match=words) as caught:
        devices.find_device()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "used"),
    [
        ((8, 6), ""),
        ((8, 9), "FP8 K/V"),
        ((9, 0), "dependent launches, FP8 K/V"),
        ((12, 0), "dependent launches, FP8 K/V, native FP4 as an option"),
    ],
)
def test_features_of_a_chip(capability: tuple[int, int], used: str) -> None:
    features = devices.summarize_features(capability).split(", ")
    assert features[0] == f"sm_{capability[0]}{capability[1]}"
    known = ("dependent launches", "FP8 K/V", "native FP4 as an option")
    assert ", ".join(one for one in features if one in known) == used


def test_an_error_is_looked_for_on_the_gpu_of_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU may be well."""
    current, asked = [0], list[int]()

    @contextmanager
    def device_context(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        try:
            yield
        finally:
            current.pop()

    monkeypatch.setattr("localdflash.backends.cuda.runner.device_context", device_context)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append(current[-1]))
    runner = object.__new__(Runner)
    runner.stepper = SimpleNamespace(device=torch.device("cuda", 1))  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="launch failure"), runner.on_gpu():
        raise RuntimeError("CUDA error: unspecified launch failure")
    assert asked == [1]


def test_a_sticky_error_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: raise_(error))
    with pytest.raises(DeviceError, match=r"the GPU failed.*restart it") as caught, device_errors():
        raise error
    assert caught.value.exit_code == 5
    assert "\n" not in str(caught.value)


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # a GPU that is well
    errors = [RuntimeError("CUDA error: invalid argument"), RuntimeError("shape"), torch.OutOfMemoryError("CUDA")]
    for error in errors:
        with pytest.raises(type(error)) as caught, device_errors():
            raise error
        assert caught.value is error
