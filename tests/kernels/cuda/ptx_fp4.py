"""FP4 matrix instructions with block scales: m16n8k64 of e2m1, as PTX lays it out over a warp.

A register holds eight neighbouring codes, the first in its lowest bits. The scales of a row are bytes of one register:
for A in the first two lanes of a quad (rows g and g + 8), for B in the first one.
"""

import numpy as np
import torch

from localdflash.kernels.cuda.planes import E2M1
from tests.kernels.cuda.ptx_arithmetic import Array

_VALUES = np.array(E2M1)


def _codes(registers: list[Array]) -> list[Array]:
    """Values [warps, 8, 32] of registers uint32 [threads]."""
    shifts = np.arange(8, dtype=np.uint32) * np.uint32(4)
    return [_VALUES[(x[:, None] >> shifts) & np.uint32(15)].reshape(-1, 8, 32) for x in registers]


def _scales(register: Array, kind: str, count: int) -> Array:
    """Scales [warps, 8, 4, count] of a register uint32 [threads]: `count` for the 64 codes of a row."""
    codes = np.ascontiguousarray(register).view(np.uint8).reshape(-1, 8, 4, 4)[..., :count]
    if kind == "ue8m0":
        return np.exp2(codes.astype(np.float64) - 127)
    assert kind == "ue4m3"
    return torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn).double().numpy()


def scaled_product(parts: list[str], a: list[Array], b: list[Array], scale_a: Array, scale_b: Array) -> Array:
    """The product float64 [warps, 16, 8] of an instruction's registers uint32 [threads], for byte and thread 0."""
    count = 2 if "scale_vec::2X" in parts else 4
    a0, a1, a2, a3 = _codes(a)
    left = np.concatenate([np.concatenate([a0, a2], 2), np.concatenate([a1, a3], 2)], 1)
    right = np.concatenate(_codes(b), 2)
    rows, columns = _scales(scale_a, parts[-1], count), _scales(scale_b, parts[-1], count)
    left = left * np.concatenate([rows[:, :, 0], rows[:, :, 1]], 1).repeat(64 // count, 2)
    right = right * columns[:, :, 0].repeat(64 // count, 2)
    product: Array = left @ right.transpose(0, 2, 1)
    return product
