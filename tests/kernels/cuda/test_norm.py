"""The fused norm against RMSNorm by its definition, in float64."""

import torch
import triton
import triton.language as tl

from localdflash.kernels.cuda.norm import Norm, norm_factor, norm_factor_reference, rstd, rstd_reference

EPS = 1e-6


@triton.jit
def _factors(squares_ptr, before_ptr, rstd_ptr, factor_ptr, H, eps, P: tl.constexpr, NORMED: tl.constexpr):
    m = tl.arange(0, 16)
    tl.store(rstd_ptr + m, rstd(squares_ptr, P, H, eps))
    tl.store(factor_ptr + m, norm_factor(squares_ptr, before_ptr, P if NORMED else 0, H, eps))


def factors(norm, normed=True):
    out = torch.zeros(2, 16)
    _factors[(1,)](norm.squares, norm.before, out[0], out[1], norm.size, norm.eps, P=norm.parts, NORMED=normed,
                   enable_fp_fusion=True)  # fmt: skip
    return out


def partial_squares(x):
    """Sums of squares over tiles of 128, the last one ragged: float32 [P, 16]."""
    return torch.stack([part.square().sum(1) for part in x.split(128, 1)]).float()


def test_rstd_of_a_width_that_is_no_multiple_of_a_tile():
    x = torch.randn(16, 300, dtype=torch.float64)
    norm = Norm(partial_squares(x), partial_squares(x), 300, EPS)
    want = (1 / torch.sqrt(x.square().mean(1) + EPS)).float()
    torch.testing.assert_close(factors(norm)[0], want, rtol=1e-6, atol=0)
    torch.testing.assert_close(rstd_reference(norm.squares, 300, EPS), want, rtol=1e-6, atol=0)


def test_prescaled_rows_times_the_factor_are_normed():
    earlier, x = torch.randn(2, 16, 256, dtype=torch.float64) * torch.tensor([3.0, 40.0]).view(2, 1, 1)
    norm = Norm(partial_squares(x), partial_squares(earlier), 256, EPS)
    prescaled = x / torch.sqrt(earlier.square().mean(1, keepdim=True) + EPS)
    for factor in (factors(norm)[1][:, None], norm_factor_reference(norm)):
        want = x / torch.sqrt(x.square().mean(1, keepdim=True) + EPS)
        torch.testing.assert_close(prescaled * factor, want, rtol=1e-5, atol=1e-6)


def test_the_factor_is_one_without_a_norm_and_where_a_norm_is_its_own_prescale():
    squares = torch.rand(5, 16)
    assert factors(Norm(squares, squares, 640, EPS))[1].tolist() == [1.0] * 16
    assert factors(Norm(squares, 2 * squares, 640, EPS), normed=False)[1].tolist() == [1.0] * 16
    assert norm_factor_reference(None) == 1.0
