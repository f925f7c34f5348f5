"""The order in which sampling sees tokens: falling logits, of equals the lower id first, as int64 keys.

A key is the logit's float32 bits, made to sort like an integer, above the inverted id. Keys of a row are distinct.
"""

import triton
import triton.language as tl


@triton.jit
def scores(logits, token, mask):
    """Logits with one zero, and infinity for what is not a number."""
    score = tl.load(logits + token, mask=mask, other=-float("inf"))
    score = tl.where(score == 0, 0.0, score)
    return tl.where(score <= float("inf"), score, float("inf"))


@triton.jit
def sortable(score):
    """The int32 that sorts like the float32; the same step on its bits leads back."""
    bits = score.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_of(score, token):
    """The key of a token."""
    return (sortable(score).to(tl.int64) << 32) | (0x7FFFFFFF - token).to(tl.int64)


@triton.jit
def score_of(key):
    """The score in a key."""
    bits = (key >> 32).to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def token_of(key):
    """The token in a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def best(noisy, key, mask):
    """The largest of noisy where mask, and its key; of equals the largest key."""
    LEAST: tl.constexpr = -(2**63)
    value = tl.max(tl.where(mask, noisy, -float("inf")), 0)
    return value, tl.max(tl.where(mask & (noisy == value), key, LEAST), 0)
