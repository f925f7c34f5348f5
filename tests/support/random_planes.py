"""Inputs of kernels: random packed weights of every layout, with an oracle in float64, norms and rows."""

from dataclasses import replace

import torch
from torch import Tensor

from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Code, Planes, Scaling, dequantize, pack_bytes, pack_fields, pack_halves

EPS = 0.02  # of a norm: one that shows
# name: R, bits of the high plane, scaling, code, zero, minimum
LAYOUTS: dict[str, tuple[int, int, Scaling, Code, int, bool]] = {
    "int4 by 128": (32, 0, "block", "int", 8, False),
    "int4 by 32": (32, 0, "half4", "int", 8, False),
    "int8 by 128": (32, 4, "block", "int", 128, False),
    "mxfp4": (32, 0, "half4", "e2m1", 0, False),
    "nvfp4": (16, 0, "half4", "e2m1", 0, False),
    "q8_0": (32, 4, "half4", "int", 128, False),
    "q4_1": (32, 0, "half4", "int", 0, True),
    "q4_k": (32, 0, "byte4", "int", 0, True),
    "q5_k": (32, 2, "byte4", "int", 0, True),
    "q6_k": (16, 2, "byte4", "int", 32, False),
}


def random_planes(name: str, n: int, k: int, seed: int = 0, experts: int = 1) -> Planes:
    """Return planes [n, k], k a multiple of the layout's block (256 for "byte4"); weights are about 0.1."""
    block_words, high_bits, scaling, code, zero, has_minimum = LAYOUTS[name]
    random = torch.Generator().manual_seed(seed)
    width, depth = (n + 127) // 128 * 128, k * experts
    blocks = depth // (4 * block_words)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random)

    def sizes(*shape: int) -> Tensor:
        return torch.rand(shape, generator=random) * 0.02 + 0.001

    top = {"q5_k": 32, "q6_k": 64}.get(name, 256)
    codes = integers(0, 16 if high_bits == 0 else top, depth, width)
    planes = Planes(
        n, k, block_words, pack_fields(codes & 15, block_words, 4),
        pack_fields(codes >> 4, block_words, high_bits) if high_bits else None, scaling, sizes(blocks, width),
        zero=zero, code=code, experts=experts,
    )  # fmt: skip
    if scaling == "block":
        return planes
    if scaling == "half4":
        words = [pack_halves(sizes(blocks, 2, width), sizes(blocks, 2, width)) for _ in range(1 + has_minimum)]
        return replace(planes, scale=words[0], minimum=words[1] if has_minimum else None)
    signed = block_words == 16
    return replace(
        planes,
        scale=pack_bytes(integers(-128 if signed else 0, 128 if signed else 64, 4 * blocks, width)),
        supers=pack_halves(sizes(depth // 256, width) / 16, sizes(depth // 256, width) / 16),
        minimum=pack_bytes(integers(0, 64, 4 * blocks, width)) if has_minimum else None,
    )


def exact(a: Tensor, planes: Planes, expert: int = 0) -> Tensor:
    """Return a @ W^T in float64, [16, n], from the definition of planes."""
    weights = dequantize(planes).double().view(planes.experts, planes.n, planes.k)[expert]
    return a[:, : planes.k].double() @ weights.T


def activations(planes: Planes, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Return rows float16 [16, padded_k], and their sums float32 [padded_k / 32, 16]."""
    a = torch.randn(16, planes.padded_k, generator=torch.Generator().manual_seed(seed)).half()
    a[:, planes.k :] = 0
    return a, group_sums(a)


def group_sums(a: Tensor) -> Tensor:
    """Return the sums over groups of 32 along k, float32 [K / 32, 16]."""
    return a.float().unflatten(1, (-1, 32)).sum(-1).T.contiguous()


def random_norm(size: int, parts: int, eps: float = 1e-6) -> Norm:
    """Return a norm of rows of `size`, after another norm."""
    squares, before = torch.rand(2, parts, 16) * size + 1
    return Norm(squares, before, size, eps)


def exact_norm_factor(norm: Norm | None) -> Tensor:
    """Return the factor of a consumer's rows, float64 [16, 1]; 1 without a norm."""
    if norm is None:
        return torch.ones(1, 1, dtype=torch.float64)
    now, before = (squares.double().sum(0) / norm.size + norm.eps for squares in (norm.squares, norm.before))
    return (before / now).sqrt().unsqueeze(1)


def spoil_rows(live: int, *inputs: Tensor | Norm | None) -> None:
    """Fill the rows from `live` on of inputs [16, ...] with NaN."""
    for each in inputs:
        if each is not None:
            (each.squares.T if isinstance(each, Norm) else each)[live:] = float("nan")
