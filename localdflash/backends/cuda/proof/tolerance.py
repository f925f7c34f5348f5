"""When two results of an operation are the same: to the bit between two runs, up to rounding beside a reference."""

import torch
from torch import Tensor

# Of the largest value: float32 sums in another order; sums of values that were rounded to float16; such values.
EXACT, SUMS, ROUNDED = 5e-5, 2e-3, 2e-3
CODES = {torch.int8: 1.01, torch.float8_e4m3fn: 32.5}  # the widest step of an 8-bit KV cache
ODD_CODES = 0.03  # of the codes may be off by one: values that lie between two


class Unsound(Exception):
    """An operation that did not do what it should: which one, and what it did."""

    def __init__(self, operation: str, what: str) -> None:
        super().__init__(f"{operation}: {what}")
        self.operation = operation


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN too."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def difference(name: str, got: Tensor, want: Tensor) -> str:
    """Return how a result differs from the reference's by more than rounding; "" if it does not."""
    want = want.to(got.device)
    if got.dtype in CODES:
        return _of_codes(got, want)
    if not got.is_floating_point():
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} of {got.numel()} integers differ"
    rounding = SUMS if "sums" in name else EXACT if got.dtype == torch.float32 else ROUNDED
    got, want = got.double(), want.double()
    alike = (got == want) | (got.isnan() & want.isnan())  # infinities; NaN that was there before, in dead rows
    error = torch.where(alike, 0.0, (got - want).abs())
    if bool(error.isnan().any()):
        return f"{int(error.isnan().sum())} of {got.numel()} numbers are NaN"
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    part = float(error.max()) / max(largest, 1e-30)
    return f"off by {part:.1e} of the largest value" if part > rounding else ""


def _of_codes(got: Tensor, want: Tensor) -> str:
    odd = float((got.view(torch.uint8) != want.view(torch.uint8)).float().mean())
    step = float((got.float() - want.float()).abs().nan_to_num(float("inf")).max())
    if odd > ODD_CODES or step > CODES[got.dtype]:
        return f"{odd:.1%} of the codes differ, by up to {step:g}"
    return ""
