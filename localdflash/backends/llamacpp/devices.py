"""GPUs that this build of llama.cpp can use, by llama.cpp's names; a CPU build has none."""

import ctypes
from collections.abc import Sequence

from localdflash.backends.llamacpp.llama_library import call_ggml, quiet
from localdflash.backends.llamacpp.placement import Device
from localdflash.base.errors import NoDevice

GPU, INTEGRATED = 1, 2  # ggml_backend_dev_type


def devices() -> Sequence[Device]:
    """Return all GPUs, best first: dedicated before integrated memory, then by size."""
    quiet()
    found = [_device(index) for index in range(call_ggml("ggml_backend_dev_count", ctypes.c_size_t))]
    return sorted(filter(None, found), key=lambda device: (device.integrated, -device.size))


def find_gpu(name: str) -> Device:
    """Return the GPU of this name, or the best one for "gpu"; raise NoDevice if there is none."""
    found = devices()
    for device in found:
        if name in ("gpu", device.name):
            return device
    names = ", ".join(device.name for device in found)
    known = f"expected one of {names}" if found else "it sees no GPU; `localdflash doctor` lists what it needs"
    raise NoDevice(f"--device {name}: llama.cpp has no such GPU ({known})")


def _device(index: int) -> Device | None:
    handle = call_ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(index))
    kind = call_ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p(handle))
    if kind not in (GPU, INTEGRATED):
        return None
    free, size = ctypes.c_size_t(), ctypes.c_size_t()
    call_ggml("ggml_backend_dev_memory", None, ctypes.c_void_p(handle), ctypes.byref(free), ctypes.byref(size))
    name, description = (
        call_ggml(f"ggml_backend_dev_{what}", ctypes.c_char_p, ctypes.c_void_p(handle)).decode("utf-8", "replace")
        for what in ("name", "description")
    )
    return Device(name, description, kind == INTEGRATED, free.value, size.value, handle)
