"""A software GPU for tests: llama.cpp's Vulkan backend, running on Mesa's lavapipe.

`PYTHONPATH=. python -P lab/scripts/peers/gpu_software.py [--folder .venv/gpu-software]` (`make gpu-software`) builds
both into the folder, once; that takes 6 minutes on one core. Nothing is installed: Mesa, the shader compiler and the
Vulkan headers are unpacked from Debian's packages, ggml-vulkan is built from the sources of the installed
llama-cpp-python. `environment(folder)` has the variables with which a process finds the device. Exit codes: 0 built, 1
impossible (one line names the reason).
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from localdflash.lab.scripts.editors.unpack_packages import CannotFetch, unpack, write_launcher
from localdflash.lab.scripts.peers.llama_source import VERSION, PeerError, llama_source, run

FOLDER = Path(__file__).parents[3] / ".venv" / "gpu-software"
LIBRARY = f"libggml-vulkan-{VERSION}.so"
OLD, NEW = "bookworm", "trixie"  # programs need an old C library; ggml-vulkan needs headers of Vulkan 1.4
RUNS, COMPILES = ["mesa-vulkan-drivers", "libvulkan1", "glslc"], ["libvulkan-dev", "spirv-headers"]
# One module with ggml's own entry point, for `ggml_backend_load`; -O1, since the host's code takes little of the time.
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DBUILD_SHARED_LIBS=ON",
    "-DLLAMA_BUILD_COMMON=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_VULKAN=ON",
    "-DGGML_CPU=OFF",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    # RPATH instead of RUNPATH: it also applies to the libraries that the Vulkan loader opens
    "-DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags",
)


def installed(folder: Path = FOLDER) -> bool:
    """Return whether the software GPU was built for the installed llama-cpp-python."""
    return (folder / LIBRARY).is_file() and version("llama-cpp-python") == VERSION


def environment(folder: Path = FOLDER) -> Mapping[str, str]:
    """Return the environment variables with which a process finds the device."""
    return {
        "LOCALDFLASH_GGML_BACKEND": str(folder / LIBRARY),
        "VK_DRIVER_FILES": str(folder / "lavapipe.json"),
        "GGML_VK_VISIBLE_DEVICES": "0",  # CPU devices are skipped unless they are named
        "GALLIVM_PERF": "nopt",  # since compiling shaders takes longer than running them
        "MESA_SHADER_CACHE_DIR": str(folder / "shaders"),
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", str(folder)),
    }


def build(folder: Path, jobs: int) -> None:
    """Build everything into the folder; CannotFetch or PeerError if that is impossible."""
    if (installed_version := version("llama-cpp-python")) != VERSION:
        raise PeerError(f"llama-cpp-python {installed_version}: expected {VERSION}, whose sources are pinned")
    (folder / "shaders").mkdir(parents=True, exist_ok=True)
    root = unpack(OLD, RUNS, folder / OLD)
    headers = unpack(NEW, COMPILES, folder / NEW)
    libraries = next(root.glob("usr/lib/*/libvulkan.so.1")).parent
    driver = next(root.glob("usr/share/vulkan/icd.d/lvp_icd*.json"))
    named = json.loads(driver.read_text())
    named["ICD"]["library_path"] = str(libraries / "libvulkan_lvp.so")
    (folder / "lavapipe.json").write_text(json.dumps(named))
    source, made = llama_source(folder), folder / "build"
    shutil.rmtree(made, ignore_errors=True)
    where = (
        f"-DVulkan_INCLUDE_DIR={headers / 'usr/include'}",
        f"-DVulkan_LIBRARY={libraries / 'libvulkan.so.1'}",
        f"-DVulkan_GLSLC_EXECUTABLE={write_launcher(folder / 'glslc', root, 'usr/bin/glslc', {})}",
        f"-DSPIRV-Headers_DIR={headers / 'usr/share/cmake/SPIRV-Headers'}",
        f"-DCMAKE_BUILD_RPATH={libraries}",
    )
    run("cmake", "-S", str(source), "-B", str(made), *OPTIONS, *where)
    run("cmake", "--build", str(made), "--parallel", str(jobs), "--target", "ggml-vulkan")
    next(made.rglob("libggml-vulkan.so")).rename(folder / LIBRARY)
    for passed in (made, headers.parent, source.parents[1]):
        shutil.rmtree(passed)


def main() -> int:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    folder = given.folder.absolute()
    try:
        if not installed(folder):
            build(folder, given.jobs)
    except (CannotFetch, PeerError) as why:
        sys.stderr.write(f"gpu_software.py: {why}\n")
        return 1
    sys.stdout.writelines(f"export {name}={value}\n" for name, value in environment(folder).items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
