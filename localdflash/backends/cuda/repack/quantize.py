"""Float weights to integer planes at load time: symmetric, round to nearest, one float32 scale for a group along k.

int8 is for drafters that come in bfloat16, where it costs next to nothing; int4 halves their bytes again.
"""

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.plane_packing import INT4, INT8, UnpackedRows, empty, fill, padded
from localdflash.kernels.cuda.planes import Planes

LAYOUTS = {8: INT8, 4: INT4}
BLOCK = 128


def quantize(weights: Tensor, bits: int = 8, group: int = BLOCK) -> Planes:
    """Quantize [n, k] float weights to planes with "block" scaling, on their device; `group` is a multiple of 128.

    The error of a weight is at most half a step: the largest magnitude of its group / 127 (8 bits) or / 7 (4 bits).
    """
    if bits not in LAYOUTS or group % BLOCK:
        raise ValueError(f"cannot quantize to {bits} bits in groups of {group}")
    n, k = weights.shape
    planes = empty(LAYOUTS[bits], n, k, 1, weights.device)
    fill(planes, 0, lambda rows: quantize_rows(weights[rows], bits, group))
    return planes


def quantize_rows(weights: Tensor, bits: int = 8, group: int = BLOCK) -> UnpackedRows:
    """Quantize some rows, [rows, k] -> codes [rows, k] and a scale for every 128 weights [rows, ceil(k / 128)]."""
    rows, k = weights.shape
    limit = 2 ** (bits - 1) - 1
    groups = torch.nn.functional.pad(weights.float(), (0, padded(k, group) - k)).view(rows, -1, group)
    scale = groups.abs().amax(-1) / limit
    steps = torch.where(scale > 0, scale, 1).unsqueeze(-1)
    codes = (groups / steps).round().clamp(-limit, limit) + 2 ** (bits - 1)
    blocks = padded(k, BLOCK) // BLOCK
    return UnpackedRows(
        codes=codes.to(torch.uint8).view(rows, -1)[:, :k],
        scale=scale.repeat_interleave(group // BLOCK, 1)[:, :blocks],
    )
