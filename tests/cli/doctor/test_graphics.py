"""The check of GPUs on simulated machines: its remedy is the install command for the GPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from localdflash.backends.llamacpp import builds
from localdflash.backends.llamacpp.placement import Device
from localdflash.cli.doctor import graphics
from localdflash.cli.doctor.graphics import Chip, has_code, llama_gpu, pip_command

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
def test_install_command_for_each_gpu(
    chips: Sequence[Chip], rocm: bool, parts: list[str], machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.setattr(graphics, "ROCM", tmp_path if rocm else tmp_path / "none")
    machine.setattr(graphics, "find_gpus", lambda: chips)
    found = llama_gpu("gpu")
    assert (found.status, found.remedy, chips[0].name in found.detail) == ("warning", pip_command(chips), True)
    assert all(part in found.remedy for part in [*parts, "pip install --force-reinstall --no-deps"])
    machine.setattr(builds, "gpu_backends", lambda: {"cuda"})
    assert "cuda" in llama_gpu("gpu").detail
    machine.setattr(graphics, "find_gpus", lambda: [])
    assert (llama_gpu("gpu").status, llama_gpu("gpu").remedy) == ("ok", "")


@pytest.mark.parametrize(
    ("archs", "chip", "status"),
    [
        ("600,750,800,890,900", RTX_5090, "warning"),
        ("890,1200", RTX_5090, "ok"),
        ("", RTX_5090, "ok"),  # a build for Vulkan
    ],
)
def test_cuda_build_without_code_for_the_gpu_is_a_warning(
    archs: str, chip: Chip, status: str, machine: pytest.MonkeyPatch
) -> None:
    info = f"CUDA : ARCHS = {archs} | USE_GRAPHS = 1 | CPU : AVX2 = 1 | " if archs else "CPU : AVX2 = 1 | "
    machine.setattr("llama_cpp.llama_cpp.llama_print_system_info", info.encode)
    machine.setattr("localdflash.backends.llamacpp.llama_library.devices", lambda: [SEEN])
    machine.setattr(graphics, "find_gpus", lambda: [chip])
    found = llama_gpu("gpu")
    assert found.status == status
    assert found.detail.startswith("CUDA0, RTX 4090, 20.0 GB free of 24.0")
    assert (f"{chip.name} (sm_{chip.capability})" in found.detail) == (status == "warning")
    assert [has_code([80, 86], capability) for capability in (75, 80, 86, 89, 90)] == [False, True, True, True, False]
