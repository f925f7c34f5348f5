"""The check of GPUs on simulated machines: its remedy is the install command for the GPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from localdflash.backends.llamacpp import builds
from localdflash.backends.llamacpp.placement import Device
from localdflash.base.machine import gpu_watch
from localdflash.cli.doctor import graphics
from localdflash.cli.doctor.graphics import Chip, command, has_code, here, llama_gpu

RTX_4090, RTX_5090 = Chip("NVIDIA", "RTX 4090", 89), Chip("NVIDIA", "RTX 5090", 120)
AMD, APPLE = Chip("AMD", "AMD GPU"), Chip("Apple", "Apple GPU")
SEEN = Device("CUDA0", "RTX 4090", False, 20 * 10**9, 24 * 10**9)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(graphics, "_cuda_wheels", lambda: "cu124")
    monkeypatch.setattr("localdflash.backends.llamacpp.llama_library.devices", lambda: [])
    return monkeypatch


@pytest.mark.parametrize(
    ("chips", "rocm", "parts"),
    [
        ([RTX_4090], False, ["--only-binary llama-cpp-python", "/whl/cu124"]),
        ([RTX_5090, RTX_4090], False, ["-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES=120", "--no-binary", "12.8"]),
        ([AMD], True, ["/whl/rocm72"]),
        ([AMD], False, ["/whl/vulkan"]),
        ([APPLE], False, ["/whl/metal"]),
    ],
)
def test_one_command_for_each_chip(
    chips: Sequence[Chip], rocm: bool, parts: list[str], machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.setattr(graphics, "ROCM", tmp_path if rocm else tmp_path / "none")
    machine.setattr(graphics, "here", lambda: chips)
    found = llama_gpu("gpu")
    assert (found.status, found.remedy, chips[0].name in found.detail) == ("warning", command(chips), True)
    assert all(part in found.remedy for part in [*parts, "pip install --force-reinstall --no-deps"])
    machine.setattr(builds, "gpu_backends", lambda: {"cuda"})
    assert "cuda" in llama_gpu("gpu").detail
    machine.setattr(graphics, "here", lambda: [])
    assert (llama_gpu("gpu").status, llama_gpu("gpu").remedy) == ("ok", "")


@pytest.mark.parametrize(
    ("archs", "chip", "status"),
    [
        ("600,750,800,890,900", RTX_5090, "warning"),
        ("890,1200", RTX_5090, "ok"),
        ("", RTX_5090, "ok"),  # a build for Vulkan
    ],
)
def test_whether_a_cuda_build_has_code_for_the_chip(
    archs: str, chip: Chip, status: str, machine: pytest.MonkeyPatch
) -> None:
    said = f"CUDA : ARCHS = {archs} | USE_GRAPHS = 1 | CPU : AVX2 = 1 | " if archs else "CPU : AVX2 = 1 | "
    machine.setattr("llama_cpp.llama_cpp.llama_print_system_info", said.encode)
    machine.setattr("localdflash.backends.llamacpp.llama_library.devices", lambda: [SEEN])
    machine.setattr(graphics, "here", lambda: [chip])
    found = llama_gpu("gpu")
    assert found.status == status
    assert found.detail.startswith("CUDA0, RTX 4090, 20.0 GB free of 24.0")
    assert (f"{chip.name} (sm_{chip.capability})" in found.detail) == (status == "warning")
    assert [has_code([80, 86], capability) for capability in (75, 80, 86, 89, 90)] == [False, True, True, True, False]


def test_a_gpu_that_keeps_ending_the_engine(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("localdflash.backends.llamacpp.llama_library.devices", lambda: [SEEN])
    machine.setattr(graphics, "here", lambda: [RTX_4090])
    for deaths, status in ((1, "ok"), (2, "warning")):
        machine.setattr(gpu_watch, "deaths", lambda deaths=deaths: deaths)
        found = llama_gpu("gpu")
        assert (found.status, "2 times today" in found.detail) == (status, status == "warning")


def test_the_pci_bus_tells_of_displays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kind, vendor in (
        ("0000:00:02.0", "0x030000", "0x8086"),
        ("0000:03:00.0", "0x038000", "0x1002"),
        ("0000:04:00.0", "0x020000", "0x8086"),  # a network card
        ("0000:05:00.0", "0x030000", "0x1234"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "class").write_text(kind + "\n")
        (tmp_path / name / "vendor").write_text(vendor + "\n")
    monkeypatch.setattr(graphics, "PCI", tmp_path)
    monkeypatch.setattr(graphics, "_nvidia", list)
    monkeypatch.setattr("sys.platform", "linux")
    assert [(chip.vendor, chip.name) for chip in here()] == [
        ("AMD", "AMD GPU at 0000:03:00.0"),
        ("Intel", "Intel GPU at 0000:00:02.0"),
    ]
