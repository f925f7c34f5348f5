"""KV cache: one slot per token, with K and V rounded to the element type.

float32 and float16 are stored directly. int8 and float8_e4m3fn have one float32 scale per (slot, head): the largest
magnitude divided by the largest code, so that value = code * scale.

All stored values are finite: NaN becomes zero, and values out of range are clipped. A step always writes 16 slots, even
for unused rows. Attention multiplies these rows' slots by zero, and zero times NaN would be NaN. A NaN in a used row
still reaches the logits, because the row's query contains NaN, too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from localdflash.base.errors import UsageError

CODES = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}  # largest code of types with a scale
SMALLEST = 1e-30  # lower bound of the largest magnitude of a head, so that a head of zeros has a scale


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer, [slots, heads, D], or of a stack of layers, [layers, slots, heads, D]."""

    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None  # float32, the shape of k without D; None for types without a scale
    v_scale: Tensor | None = None

    @classmethod
    def empty(
        cls, layers: int, slots: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> "Cache":
        """Return a stack of layers, all zero; UsageError for a type that the device cannot compute with."""
        check_type(dtype, device)
        shape = (layers, slots, heads, head_dim)
        k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        if dtype not in CODES:
            return cls(k, v)
        return cls(k, v, *(torch.zeros(shape[:3], dtype=torch.float32, device=device) for _ in range(2)))

    def layer(self, index: int) -> "Cache":
        """Return one layer of a stack; a view."""
        if self.k_scale is None or self.v_scale is None:
            return Cache(self.k[index], self.v[index])
        return Cache(self.k[index], self.v[index], self.k_scale[index], self.v_scale[index])

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the cache."""
        return [tensor for tensor in (self.k, self.v, self.k_scale, self.v_scale) if tensor is not None]

    def write(self, slots: Tensor, k: Tensor | None, v: Tensor | None, heads: slice = slice(None)) -> None:
        """Round and store rows [T, heads, D] of keys, values or both of one layer at `slots` (integer [T])."""
        for rows, codes, scales in ((k, self.k, self.k_scale), (v, self.v, self.v_scale)):
            if rows is None:
                continue
            rounded, scale = encode(rows, codes.dtype)
            codes[slots, heads] = rounded
            if scales is not None and scale is not None:
                scales[slots, heads] = scale

    def read(self) -> tuple[Tensor, Tensor]:
        """Return the whole cache in float32, in the shape of k."""
        return decode(self.k, self.k_scale), decode(self.v, self.v_scale)


def check_type(dtype: torch.dtype, device: torch.device) -> None:
    """Raise UsageError for FP8 on a GPU without FP8 conversions."""
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return
    if torch.cuda.get_device_capability(device) < (8, 9):
        raise UsageError("--kv fp8: needs compute capability 8.9 (RTX 40) or newer; use --kv int8")


def limit(dtype: torch.dtype) -> float:
    """Return the magnitude to which values are clipped before rounding: float16's for float16, else float32's."""
    return torch.finfo(torch.float16 if dtype == torch.float16 else torch.float32).max


def encode(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return the stored form of rows [..., D], and their scales [...] if the type has any."""
    rows = rows.float().nan_to_num(nan=0.0).clamp(-limit(dtype), limit(dtype))
    if dtype not in CODES:
        return rows.to(dtype), None
    scale = rows.abs().amax(-1).clamp_min(SMALLEST) / CODES[dtype]
    codes = rows / scale.unsqueeze(-1)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scale


def decode(codes: Tensor, scale: Tensor | None) -> Tensor:
    """Return the inverse of `encode`, up to rounding; float32."""
    return codes.float() if scale is None else codes.float() * scale.unsqueeze(-1)
