"""Gumbel noise that is a function of seed, position and token alone, without a generator's state.

The noise is -log(w), with w = -log(1 - u) exponentially distributed and u uniform from a 32-bit hash. The largest noise
has the smallest w, so for small u the logarithm is computed as a series, which keeps all bits of u.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MASK = 0xFFFFFFFF


@triton.jit
def _scramble(x):
    """Return the hash of x (uint32) by the finalizer of MurmurHash3, a bijection."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@triton.jit
def noise(ints, position, token):
    """Return Gumbel noise, float32 [n], of tokens [n] at one position, for the seed in ints[1:3]."""
    low = tl.load(ints + 1).to(tl.uint32, bitcast=True)
    high = tl.load(ints + 2).to(tl.uint32, bitcast=True)
    first = _scramble(low + _scramble(position.to(tl.uint32)))
    second = _scramble(high + first)
    hashed = _scramble(_scramble(token.to(tl.uint32) + first) + second)
    uniform = tl.minimum((hashed.to(tl.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    waiting = tl.where(uniform < 2.0**-10, uniform + 0.5 * uniform * uniform, -tl.log(1 - uniform))
    return -tl.log(waiting)


def noise_reference(ints: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return Gumbel noise, float32 [rows, n], of tokens [rows, n] at positions [rows], for the seed in ints[1:3]."""
    low, high = (ints[i].long() & MASK for i in (1, 2))
    first = _scramble_reference((low + _scramble_reference(positions.long())) & MASK)[:, None]
    second = _scramble_reference((high + first) & MASK)
    hashed = _scramble_reference((_scramble_reference((tokens + first) & MASK) + second) & MASK)
    uniform = ((hashed.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    waiting = torch.where(uniform < 2.0**-10, uniform + 0.5 * uniform * uniform, -(1 - uniform).log())
    return -waiting.log()


def _scramble_reference(x: Tensor) -> Tensor:
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)
