"""Which GPU is used, why a machine has no usable GPU, with what to do; and errors on the device."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda.gpus import Gpu, choose_gpu
from localdflash.backends.cuda.runner import Runner, device_errors
from localdflash.base import extras
from localdflash.base.errors import DeviceError, NoDevice, OutOfMemory
from localdflash.cli.doctor import installation
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import SCRATCH, Parts
from tests.support.pretended_gpu import pretend


def raise_(error: Exception) -> Any:
    raise error


TOO_OLD = RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")


@pytest.mark.parametrize(
    ("owner", "name", "value", "words"),
    [
        (devices, "driver_present", lambda: False, "NVIDIA driver.*--backend auto"),
        (torch.version, "cuda", None, "install a CUDA build"),
        (torch.cuda, "init", lambda: raise_(TOO_OLD), r"too old \(found version 11040\).*update the NVIDIA driver"),
        (extras, "find_spec", lambda name: None if name == "triton" else name, r"triton is not .*localdflash\[cuda\]"),
        (torch.cuda, "get_device_capability", lambda _device: (7, 5), r"4090 .* 7\.5.* 8\.0"),
    ],
    ids=["no driver", "a CPU build of torch", "an old driver", "no Triton", "an old chip"],
)
def test_missing_requirements_are_reported_in_one_line(
    owner: Any, name: str, value: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch)
    assert devices.find_device() == torch.device("cuda", 0)
    monkeypatch.setattr(owner, name, value)
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


AFTER_A_LOST_GPU = """
import os, sys, torch
from localdflash.backends.cuda.runner import device_errors

class OnTheGpu:
    def __init__(self): self.cycle = self
    def __del__(self): os.abort()  # as freeing memory of a lost GPU does

def load():
    pair, cyclic = OnTheGpu(), OnTheGpu()
    pair.cycle = None
    def fail(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
    torch.cuda.synchronize, torch.cuda.is_initialized = fail, lambda: True
    with device_errors():
        fail()

try:
    load()
except Exception as error:
    print("localdflash:", error, file=sys.stderr)
import gc; gc.collect()
sys.exit(1)
"""


def test_what_a_lost_gpu_holds_is_never_freed() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", AFTER_A_LOST_GPU], capture_output=True, text=True, check=False)
    assert done.returncode == DeviceError.exit_code, done
    assert done.stderr.startswith("localdflash: the GPU failed")


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)  # a GPU that is well
    errors = [RuntimeError("CUDA error: invalid argument"), RuntimeError("shape"), torch.OutOfMemoryError("CUDA")]
    for error in errors:
        with pytest.raises(type(error)) as caught, device_errors():
            raise error
        assert caught.value is error


GPUS = [
    ("NVIDIA GeForce RTX 2080", "aaaaaaaa-0000-4000-8000-000000000000", (7, 5)),
    ("NVIDIA GeForce RTX 4090", "bbbbbbbb-0000-4000-8000-000000000000", (8, 9)),
    ("NVIDIA GeForce RTX 3090", "cccccccc-0000-4000-8000-000000000000", (8, 6)),
    ("NVIDIA GeForce RTX 3090", "dddddddd-0000-4000-8000-000000000000", (8, 6)),
]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with four GPUs, the first too old; the patcher takes something away from it."""
    monkeypatch.setattr(devices, "driver_present", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(GPUS))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: GPUS[device.index][0])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: GPUS[device.index][2])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=GPUS[device.index][1]))
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("auto", [1, 2, 3]), ("3", [3]), ("4090", [1]), ("rtx 3090", [2, 3]), ("gpu-cccccccc", [2]),
     ("cccccccc-0000", [2])],
)  # fmt: skip
def test_a_gpu_by_its_names(name: str, numbers: list[int]) -> None:
    assert [gpu.number for gpu in devices.find_gpus(name)] == numbers
    assert devices.find_device(name) == torch.device("cuda", numbers[0])


@pytest.mark.parametrize("name", ["4", "RTX 5090", "GPU-", "2080"])
def test_where_no_gpu_is_meant_or_new_enough_those_there_are_are_told(name: str) -> None:
    with pytest.raises(NoDevice) as caught:
        devices.find_gpus(name)
    message = str(caught.value)
    assert ("8.0" if name == "2080" else f"--device {name}") in message
    assert "0 (NVIDIA GeForce RTX 2080, " in message
    assert "3 (NVIDIA GeForce RTX 3090, GPU-dddddddd-0000-4000-8000-000000000000)" in message
    assert "\n" not in message


def test_the_whole_memory_of_the_first_usable_gpu(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, (device.index + 1) * 10**10))
    assert devices.all_gpu_memory() == 2 * 10**10


OLD, FIRST = "not used: 8.0 is needed (RTX 30, A100 or newer)", "used first"
ELSE = "used if {} cannot hold a pair with its drafter"


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("auto", [OLD, FIRST, ELSE.format("1"), ELSE.format("1 and 2")]),
        ("3090", ["not used: --device is 3090"] * 2 + [FIRST, ELSE.format("2")]),
        ("0", [OLD, *["not used: --device is 0"] * 3]),
        ("cpu", ["not used: --device is cpu"] * 4),
    ],
)
def test_doctor_lists_each_gpu_and_its_role(name: str, roles: list[str], machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "mem_get_info", lambda device: (10**9 * (device.index + 1), 24 * 10**9))
    machine.setenv("LOCALDFLASH_MODEL_DEVICE", name)
    found = installation.cuda_gpus("gpus")
    expected = [
        f"{number}: {gpu}, {number + 1}.0 GB free of 24.0, GPU-{uuid}, compute capability {'.'.join(map(str, chip))}"
        for number, (gpu, uuid, chip) in enumerate(GPUS)
    ]
    assert found.status == "ok"
    assert found.detail == "; ".join(f"{gpu}, {role}" for gpu, role in zip(expected, roles, strict=True))
    if name != "cpu" and FIRST in roles:  # what is told is what is done
        assert devices.find_gpus(name)[0].number == roles.index(FIRST)


# The first with room


class Sizes:
    """A pair of 100 bytes a token, with a drafter of 1 000 000."""

    trained, drafters = 8192, ("8 bits", "none")

    def parts(self, context: int, drafter: str) -> Parts:
        return {SCRATCH: 100 * context + (1_000_000 if drafter == "8 bits" else 0)}


def rooms(*free: int) -> tuple[Callable[[torch.device], MemoryBudget], list[int]]:
    """Free memory of each GPU, and the list of queried ones."""
    asked = list[int]()

    def measure(device: torch.device) -> MemoryBudget:
        asked.append(device.index)
        return MemoryBudget(free[device.index], 0, "GPU memory")

    return measure, asked


@pytest.mark.parametrize(
    ("free", "chosen", "asked"),
    [
        ((5_000_000, 5_000_000, 9), 0, [0]),
        ((700_000, 100, 5_000_000), 2, [0, 1, 2]),
        ((700_000, 800_000, 9), 0, [0, 1, 2]),
    ],
    ids=["the first", "the one for the whole pair", "none for the whole pair"],
)
def test_the_first_with_room_is_taken(free: tuple[int, ...], chosen: int, asked: list[int]) -> None:
    measure, seen = rooms(*free)
    gpu, _ = choose_gpu([Gpu(number) for number in range(3)], Sizes(), 4096, measure)
    assert (gpu.number, seen) == (chosen, asked)


def test_where_none_has_room_the_largest_is_told() -> None:
    measure, _ = rooms(1000, 40_000, 2000)
    with pytest.raises(OutOfMemory, match=r"40\.0 KB|0\.0 MB of GPU memory are free"):
        choose_gpu([Gpu(number) for number in range(3)], Sizes(), 4096, measure)
