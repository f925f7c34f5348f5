"""Checks of Python and the libraries: their versions and builds, and whether these suit this machine.

A pair is a target model and its drafter.
"""

import platform
import sys
from importlib.metadata import version

from localdflash.base import extras
from localdflash.base.errors import NoDevice
from localdflash.cli.doctor.check import Finding

INSTRUCTIONS = {"AVX2": ("avx2",), "AVX512": ("avx512f",), "AVX512_VNNI": ("avx512_vnni",), "AVX_VNNI": ("avx_vnni",)}
TORCH_IS_FOR = "training, the torch reference, the CUDA engine, and safetensors drafters with llama.cpp"
LLAMA_IS_FOR = "GGUF files that the CPU engine cannot run, and GPUs other than NVIDIA's"
CPU_TORCH = "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cpu"
REBUILD_COMMAND = "CMAKE_ARGS=-DGGML_NATIVE=on pip install --force-reinstall --no-binary :all: llama-cpp-python"


def python(name: str) -> Finding:
    """Report the version and path of Python."""
    return Finding(name, "ok", f"{platform.python_version()} at {sys.executable}")


def settings(name: str) -> Finding:
    """Read config.toml, its environment variables and the user's models.toml; report their settings."""
    from localdflash.models.config import DEFAULT, load_config
    from localdflash.models.registry.registry import load_registry

    changed = [f"{setting} ({origin})" for setting, origin in load_config().origins.items() if origin != DEFAULT]
    pairs = len(load_registry().pairs)
    return Finding(name, "ok", f"{', '.join(changed) or 'all by default'}; {pairs} pairs in the registry")


def torch(name: str) -> Finding:
    """Report whether PyTorch is installed, its build, and what needs it."""
    if extras.missing_module("torch"):
        return Finding(name, "ok", f"not installed; for {TORCH_IS_FOR}", f"`{extras.install_command('torch')}` adds it")
    import torch as package

    from localdflash.backends.cuda.device import driver_present

    cuda, rocm = package.version.cuda, package.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU"
    detail = f"{package.__version__}, built for {build}: for {TORCH_IS_FOR}"
    if cuda and not driver_present():
        return Finding(name, "ok", f"{detail}; no NVIDIA driver", f"a CPU build is smaller: `{CPU_TORCH}`")
    return Finding(name, "ok", detail)


def cuda(name: str) -> Finding:
    """Check whether the CUDA engine can use this GPU; report the GPU's features and memory, or what is in the way."""
    from localdflash.backends.cuda.device import (
        driver_present,
        driver_version,
        find_device,
        missing_tools,
        summarize_features,
    )

    if not driver_present():
        return Finding(name, "ok", "not used: no NVIDIA driver; every pair runs on the CPU")
    try:
        device = find_device()
        if missing := missing_tools():
            raise NoDevice(missing)
    except NoDevice as error:
        what, _, remedy = str(error).partition("; ")  # NoDevice reads "reason; remedy"
        return Finding(name, "warning", f"not used because {what}; every pair runs on the CPU", remedy)
    import torch as package

    free, size = package.cuda.mem_get_info(device)
    memory = f"{free / 1e9:.1f} GB free of {size / 1e9:.1f}"
    features = summarize_features(package.cuda.get_device_capability(device))
    detail = f"driver {driver_version()}, {package.cuda.get_device_name(device)}: {features}, {memory}"
    return Finding(name, "ok", detail)


def cuda_gpus(name: str) -> Finding:
    """List every CUDA GPU with its names for `--device`, and whether the setting `model.device` lets a pair use it."""
    from localdflash.backends.cuda.device import driver_present
    from localdflash.backends.cuda.gpus import describe_roles
    from localdflash.models.config import load_config

    gpus = describe_roles(load_config().model.device) if driver_present() else ()
    return Finding(name, "ok", "; ".join(f"{gpu.describe()}, {role}" for gpu, role in gpus) or "no CUDA device")


def cpu_engine(name: str) -> Finding:
    """Report the instruction set that the CPU engine uses, or why the engine is not available."""
    from localdflash.backends.cpu import cpu_library
    from localdflash.base.machine.cores import core_count

    if why := cpu_library.why_unavailable():
        what = why.removesuffix(f"; {cpu_library.REINSTALL}")
        lost = "every pair runs on llama.cpp, if it is installed"
        return Finding(name, "warning", f"not used because {what}; {lost}", cpu_library.REINSTALL)
    best, threads = cpu_library.load().instruction_sets[0], core_count()
    detail = f"{best}, {threads} thread{'s' if threads > 1 else ''}"
    if best == "portable":
        detail += ": this CPU has no supported vector instructions; llama.cpp is preferred"
    return Finding(name, "ok", detail)


def llama(name: str) -> Finding:
    """Compare llama.cpp's build with this processor's features. ModelError if the build cannot return hidden states."""
    if extras.missing_module("llama"):
        return Finding(name, "ok", f"not installed; for {LLAMA_IS_FOR}", f"`{extras.install_command('llama')}` adds it")
    import llama_cpp.llama_cpp as api

    from localdflash.backends.llamacpp import llama_library
    from localdflash.base.machine import hardware

    built_with = _built_with(api.llama_print_system_info().decode())
    llama_library.tap_reader()  # raises the ModelError
    gpu = "with GPU support" if api.llama_supports_gpu_offload() else "for the CPU"
    detail = f"{version(name)}, built {gpu} with {' '.join(built_with)}"
    flags = set(hardware.read_cpuinfo().get("flags", "").split())
    unused = [what for what, names in INSTRUCTIONS.items() if what not in built_with and flags.issuperset(names)]
    if "AVX2" in unused:
        detail += "; this CPU has AVX2, but the build does not use it"
        return Finding(name, "warning", detail, f"build it for this CPU: `{REBUILD_COMMAND}`")
    if unused:
        detail += f"; this CPU also has {' '.join(unused)}"
        return Finding(name, "ok", detail, f"may be faster built for this CPU: `{REBUILD_COMMAND}`")
    return Finding(name, "ok", detail)


def _built_with(info: str) -> list[str]:
    parts = info.replace(" : ", " | ").split("|")
    return [part.split("=")[0].strip() for part in parts if part.strip().endswith("= 1")]


def offline(name: str) -> Finding:
    """Report the environment variable that turns off downloads from the Hugging Face hub."""
    from localdflash.models.registry.hub import offline_variable

    variable = offline_variable()
    off = "off: `models pull`, `plan` and `show` use the network"
    return Finding(name, "ok", f"on: {variable} forbids downloads" if variable else off)
