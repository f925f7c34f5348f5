"""Whether a desktop is shown on a GPU, as NVIDIA's management library (NVML) knows it.

Its functions return 0 where they succeed. Source: NVIDIA, NVML API reference.
"""

import ctypes
import sys

import torch

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def is_shown_on(device: torch.device) -> bool:
    """Whether a display is active on this GPU; False if nobody knows."""
    try:
        library = ctypes.CDLL(LIBRARY)
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
        handle, active = ctypes.c_void_p(), ctypes.c_uint()
        known = (
            library.nvmlInit_v2() == 0
            and library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)) == 0
            and library.nvmlDeviceGetDisplayActive(handle, ctypes.byref(active)) == 0
        )
    except (OSError, AttributeError, RuntimeError, AssertionError):  # no library, an old one or an old torch, no CUDA
        return False
    return known and active.value == 1
