"""Sort keys: one int64 holds a float32 and its index, so that a plain integer maximum finds the winner of an argmax.

Keys order like the values; of equal values (-0 equals 0) the lower index has the higher key; a NaN beats everything.
"""

import triton
import triton.language as tl


@triton.jit
def key_of(value, index):
    """Return the keys, int64, of values float32 and indices int32 >= 0 of one shape."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    ordered = tl.where(value == value, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)  # noqa: PLR0124
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def value_of(key):
    """Return the value in a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def index_of(key):
    """Return the index in a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def is_nan(key):
    """Return whether the value in a key is NaN."""
    return (key >> 32) == 0x7FFFFFFF
