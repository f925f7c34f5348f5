"""The check of GPUs: which are here, which llama.cpp can use, and the one command that gets it a build for them."""

import platform
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from localdflash.base import extras
from localdflash.base.machine import gpu_watch
from localdflash.cli.doctor.check import Finding

WHEELS = "https://abetlen.github.io/llama-cpp-python/whl"
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # PCI
DISPLAYS = "0x03"  # class of a PCI device: a display controller
PCI, ROCM = Path("/sys/bus/pci/devices"), Path("/dev/kfd")
NEWEST_IN_WHEELS = 90  # compute capability: newer chips get no code of their own from the wheels for CUDA
CUDA_WHEELS = {(13, 0): "cu130", (12, 4): "cu124", (12, 1): "cu121"}  # by the oldest CUDA of the driver


@dataclass(frozen=True)
class Chip:
    """A GPU of this machine. `capability` is NVIDIA's, 0 where its driver does not tell."""

    vendor: str  # NVIDIA, AMD, Intel or Apple
    name: str
    capability: int = 0  # 89, 120


def llama_gpu(name: str) -> Finding:
    """Check whether llama.cpp can compute on the GPUs that are here, or say how it could."""
    chips = here()
    if extras.missing_module("llama"):
        found = ", ".join(chip.name for chip in chips) or "no GPU was found"
        return Finding(name, "ok", f"llama.cpp is not installed; {found}", command(chips) if chips else "")
    from localdflash.backends.llamacpp.llama_library import devices

    if seen := devices():
        detail = "; ".join(
            f"{device.name}, {device.description}, {device.free / 1e9:.1f} GB free of {device.size / 1e9:.1f}"
            for device in seen
        )
        if (times := gpu_watch.deaths()) >= gpu_watch.MAX_DEATHS:
            detail = f"{detail}; a GPU crashed the engine {times} times today, so --device auto does not use it"
            return Finding(
                name,
                "warning",
                detail,
                "check the GPU's driver and other programs that use it; --device gpu tries it again",
            )
        return _matches(name, detail, chips)
    if not chips:
        return Finding(name, "ok", "no GPU found; every pair runs on the CPU")
    detail = f"llama.cpp does not use {', '.join(chip.name for chip in chips)}: its build {_lacks(chips)}"
    return Finding(name, "warning", detail, command(chips))


def _matches(name: str, detail: str, chips: Sequence[Chip]) -> Finding:
    """Return whether a build for CUDA has code for the chips of this machine."""
    import llama_cpp.llama_cpp as api

    built = built_for(api.llama_print_system_info().decode("utf-8", "replace"))
    without = [chip for chip in chips if built and chip.capability and not has_code(built, chip.capability)]
    if not without:
        return Finding(name, "ok", detail)
    chip = without[0]
    lacks = f"llama-cpp-python has no kernels for {chip.name} (sm_{chip.capability}): slow, or fails to start"
    return Finding(name, "warning", f"{detail}; {lacks}", command(without))


def _lacks(chips: Sequence[Chip]) -> str:
    from localdflash.backends.llamacpp.builds import gpu_backends

    if there := gpu_backends():
        return f"is for {' and '.join(sorted(there))} and finds none of them; check the GPU driver"
    return "is CPU-only"


def built_for(info: str) -> Collection[int]:
    """Return the compute capabilities that a build has code for, by llama.cpp's own line ("CUDA : ARCHS = 860,890")."""
    found = re.search(r"ARCHS = ([\d,]+)", info)
    return [int(part) // 10 for part in found[1].split(",") if part] if found else []


def has_code(built: Collection[int], capability: int) -> bool:
    """Return whether code of one of these capabilities is native to a chip: same generation, and not newer."""
    return any(one // 10 == capability // 10 and one <= capability for one in built)


def command(chips: Sequence[Chip]) -> str:
    """Return the one command that installs llama-cpp-python for the first of these GPUs."""
    chip = chips[0]
    if chip.vendor == "NVIDIA" and chip.capability > NEWEST_IN_WHEELS:
        how = f"-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES={chip.capability}"
        return f'`CMAKE_ARGS="{how}" {_pip("--no-binary")}` (needs the CUDA toolkit 12.8 or newer)'
    if chip.vendor == "NVIDIA":
        return f"`{_pip('--only-binary')} --extra-index-url {WHEELS}/{_cuda_wheels()}`"
    if chip.vendor == "Apple":
        return f"`{_pip('--only-binary')} --extra-index-url {WHEELS}/metal`"
    rocm = chip.vendor == "AMD" and ROCM.exists()
    return f"`{_pip('--only-binary')} --extra-index-url {WHEELS}/{'rocm72' if rocm else 'vulkan'}`"


def _pip(form: str) -> str:
    package = "llama-cpp-python"
    if not (installed := extras.version_of(package)):
        return f"pip install {form} {package} 'localdflash[llama]'"
    return f"pip install --force-reinstall --no-deps {form} {package} {package}=={installed}"


def here() -> Sequence[Chip]:
    """Return the GPUs of this machine, as far as its system tells, NVIDIA's first."""
    if sys.platform == "darwin":
        return [Chip("Apple", "Apple GPU")] if platform.machine() == "arm64" else []
    else:  # noqa: RET505 - type checkers read one branch only
        nvidia = _nvidia()
        others = [chip for chip in _pci() if not (nvidia and chip.vendor == "NVIDIA")]
        return [*nvidia, *others]


def _pci() -> Sequence[Chip]:
    found = []
    for device in sorted(PCI.iterdir()) if PCI.is_dir() else ():
        kind, vendor = _read(device / "class"), VENDORS.get(_read(device / "vendor"))
        if vendor and kind.startswith(DISPLAYS):
            found.append(Chip(vendor, f"{vendor} GPU at {device.name}"))
    return sorted(found, key=lambda chip: list(VENDORS.values()).index(chip.vendor))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _nvidia() -> Sequence[Chip]:
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        chips = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            text = name if isinstance(name, str) else name.decode("utf-8", "replace")
            chips.append(Chip("NVIDIA", text, 10 * major + minor))
        return chips
    except pynvml.NVMLError:
        return []


def _cuda_wheels() -> str:
    """Return the newest wheels that the NVIDIA driver can run; the oldest ones where it does not tell."""
    import pynvml

    try:
        pynvml.nvmlInit()
        number = int(pynvml.nvmlSystemGetCudaDriverVersion())
    except pynvml.NVMLError:
        number = 0
    driver = (number // 1000, number % 1000 // 10)
    return next((name for oldest, name in CUDA_WHEELS.items() if driver >= oldest), "cu121")
