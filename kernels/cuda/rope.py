"""Rotary position embedding in the rotate-half (NeoX) form, as tables for the kernels.

Element d of a head's first half and element d of its second half form a pair, which is rotated by the angle
position * theta**(-2d / D). Source: RoFormer, arXiv 2104.09864, in the layout of GPT-NeoX, Llama and Qwen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Cos and sin of every angle, times the magnitude, float32 [positions, D / 2]."""

    cos: Tensor
    sin: Tensor


def rope_tables(
    positions: int,
    head_dim: int,
    theta: float,
    device: torch.device,
    factors: Tensor | None = None,
    magnitude: float = 1.0,
) -> Rope:
    """Return the tables for positions 0 .. positions - 1.

    `factors` float32 [D / 2] divide the frequencies (`rope_freqs.weight` of Llama 3 files, YaRN), and `magnitude`
    multiplies cos and sin, and so the rotated vectors (YaRN). Angles are float32, as in the models' training, and
    computed on the CPU, so that every device has the same bits.
    """
    frequencies = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if factors is not None:
        frequencies = frequencies / factors.cpu()
    angles = torch.arange(positions, dtype=torch.float32).unsqueeze(1) * frequencies
    return Rope((angles.cos() * magnitude).to(device), (angles.sin() * magnitude).to(device))


def rotate(heads: Tensor, rope: Rope, positions: Tensor) -> Tensor:
    """Return heads [T, heads, D] float32, rotated for `positions` (integer [T]), in torch: the kernels' reference."""
    cos, sin = rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1)  # [T, 1, D / 2]
    first, second = heads.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
