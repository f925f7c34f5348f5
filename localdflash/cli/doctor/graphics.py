"""Check whether llama.cpp can use this machine's GPUs, and find the command that installs a GPU build of it."""

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
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # by PCI vendor id
DISPLAYS = "0x03"  # start of the PCI class of display controllers
PCI, ROCM = Path("/sys/bus/pci/devices"), Path("/dev/kfd")
NEWEST_IN_WHEELS = 90  # compute capability; the CUDA wheels have no native code for newer GPUs
CUDA_WHEELS = {(13, 0): "cu130", (12, 4): "cu124", (12, 1): "cu121"}  # oldest CUDA of the driver -> name in the URL


@dataclass(frozen=True)
class Chip:
    """GPU of this machine. `capability`: NVIDIA's compute capability times 10, 0 if unknown."""

    vendor: str  # NVIDIA, AMD, Intel or Apple
    name: str
    capability: int = 0  # 89 for 8.9


def llama_gpu(name: str) -> Finding:
    """Check whether llama.cpp can use the GPUs of this machine; the remedy installs a build that can."""
    chips = find_gpus()
    if extras.missing_module("llama"):
        found = ", ".join(chip.name for chip in chips) or "no GPU was found"
        return Finding(name, "ok", f"llama.cpp is not installed; {found}", pip_command(chips) if chips else "")
    from localdflash.backends.llamacpp.llama_library import devices

    if gpus := devices():
        memory = (
            (f"{one.name}, {one.description}", f"{one.free / 1e9:.1f} GB free of {one.size / 1e9:.1f}") for one in gpus
        )
        detail = "; ".join(map(", ".join, memory))
        if (times := gpu_watch.count_crashes()) >= gpu_watch.MAX_CRASHES:
            detail = f"{detail}; a GPU crashed the engine {times} times today, so --device auto does not use it"
            remedy = "check the GPU's driver and other programs that use it; --device gpu tries it again"
            return Finding(name, "warning", detail, remedy)
        return _check_cuda_build(name, detail, chips)
    if not chips:
        return Finding(name, "ok", "no GPU found; every pair runs on the CPU")
    from localdflash.backends.llamacpp.builds import gpu_backends

    build = "is CPU-only"
    if backends := gpu_backends():
        build = f"is for {' and '.join(sorted(backends))} and finds none of them; check the GPU driver"
    detail = f"llama.cpp does not use {', '.join(chip.name for chip in chips)}: its build {build}"
    return Finding(name, "warning", detail, pip_command(chips))


def _check_cuda_build(name: str, detail: str, chips: Sequence[Chip]) -> Finding:
    """Check whether a CUDA build has kernels for this machine's GPUs; it reports "CUDA : ARCHS = 860,890"."""
    import llama_cpp.llama_cpp as api

    found = re.search(r"ARCHS = ([\d,]+)", api.llama_print_system_info().decode("utf-8", "replace"))
    built = [int(part) // 10 for part in found[1].split(",") if part] if found else []
    unsupported = [chip for chip in chips if built and chip.capability and not has_code(built, chip.capability)]
    if not unsupported:
        return Finding(name, "ok", detail)
    chip = unsupported[0]
    lacks = f"llama-cpp-python has no kernels for {chip.name} (sm_{chip.capability}): slow, or fails to start"
    return Finding(name, "warning", f"{detail}; {lacks}", pip_command(unsupported))


def has_code(built: Collection[int], capability: int) -> bool:
    """Return whether a GPU can run kernels built for one of these capabilities: of its generation, and not newer."""
    return any(one // 10 == capability // 10 and one <= capability for one in built)


def pip_command(chips: Sequence[Chip]) -> str:
    """Return the command that installs a build of llama-cpp-python for the first of these GPUs."""
    chip = chips[0]
    if chip.vendor == "NVIDIA" and chip.capability > NEWEST_IN_WHEELS:
        cmake_args = f"-DGGML_CUDA=on -DCMAKE_CUDA_ARCHITECTURES={chip.capability}"
        return f'`CMAKE_ARGS="{cmake_args}" {_pip("--no-binary")}` (needs the CUDA toolkit 12.8 or newer)'
    match chip.vendor:
        case "NVIDIA":
            wheels = _cuda_wheels()
        case "Apple":
            wheels = "metal"
        case _:
            wheels = "rocm72" if chip.vendor == "AMD" and ROCM.exists() else "vulkan"
    return f"`{_pip('--only-binary')} --extra-index-url {WHEELS}/{wheels}`"


def _pip(form: str) -> str:
    package = "llama-cpp-python"
    if not (installed := extras.version_of(package)):
        return f"pip install {form} {package} 'localdflash[llama]'"
    return f"pip install --force-reinstall --no-deps {form} {package} {package}=={installed}"


def find_gpus() -> Sequence[Chip]:
    """Return the GPUs of this machine, NVIDIA's first."""
    if sys.platform == "darwin":
        return [Chip("Apple", "Apple GPU")] if platform.machine() == "arm64" else []
    else:  # noqa: RET505 - type checkers read one branch only
        nvidia = _nvidia()
        return [*nvidia, *(chip for chip in _pci() if not (nvidia and chip.vendor == "NVIDIA"))]


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
            chips.append(Chip("NVIDIA", pynvml.nvmlDeviceGetName(handle), 10 * major + minor))
        return chips
    except pynvml.NVMLError:
        return []


def _cuda_wheels() -> str:
    """Return the name of the newest CUDA wheels that the driver supports; the oldest if its version is unknown."""
    import pynvml

    try:
        pynvml.nvmlInit()
        number = int(pynvml.nvmlSystemGetCudaDriverVersion())
    except pynvml.NVMLError:
        number = 0
    driver = (number // 1000, number % 1000 // 10)
    return next((name for oldest, name in CUDA_WHEELS.items() if driver >= oldest), "cu121")
