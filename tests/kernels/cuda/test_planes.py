"""Packing and the definition of planes, against loops over single weights."""

import struct

import pytest
import torch

from localdflash.kernels.cuda.planes import E2M1, Planes, dequantize, pack_halves


def fields(words: torch.Tensor, block: int, rows: int, r: int, i: int, n: int, bits: int) -> int:
    return (int(words[block * rows + r, n]) % 65536 >> (bits * i)) % 2**bits


def half(word: int, which: int) -> float:
    return float(struct.unpack("<ee", struct.pack("<i", word))[which])


def one_weight(p: Planes, expert: int, k: int, n: int) -> float:
    """The module docstring of planes, word by word, for one weight."""
    at = expert * p.padded_k + k
    block, i, r = at // (4 * p.rows), at % (4 * p.rows) // p.rows, at % p.rows
    code = fields(p.base, block, p.rows, r, i, n, 4)
    if p.high is not None:
        code |= fields(p.high, block, p.rows, r, i, n, p.high_bits) << 4
    value: float = code - p.zero
    if p.code == "e2m1":
        value = E2M1[code]
    if p.scaling == "half4":
        return value * half(int(p.scale[block, i // 2, n]), i % 2)
    if p.scaling == "block":
        return value * float(p.scale[block, n])
    assert p.supers is not None
    supers = int(p.supers[at // 256, n])
    scale = int.to_bytes(int(p.scale[block, n]) % 2**32, 4, "little")[i]
    scale = scale - 256 if p.rows == 16 and scale > 127 else scale
    minimum = 0 if p.minimum is None else int.to_bytes(int(p.minimum[block, n]) % 2**32, 4, "little")[i]
    return value * half(supers, 0) * scale - half(supers, 1) * minimum


@pytest.mark.parametrize(
    ("rows", "high_bits", "scaling", "code", "zero", "has_minimum"),
    [
        (32, 4, "block", "int", 128, False),
        (32, 0, "half4", "e2m1", 0, False),
        (16, 4, "half4", "int", 128, False),
        (32, 2, "byte4", "int", 0, True),
        (16, 2, "byte4", "int", 32, False),
    ],
)
def test_definition(rows: int, high_bits: int, scaling: str, code: str, zero: int, has_minimum: bool) -> None:
    n, k, experts, padded = 2, 250, 2, 256
    random = torch.Generator().manual_seed(0)

    def words(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, (*shape, n), generator=random).to(dtype)

    def half_pairs(*shape: int) -> torch.Tensor:
        return pack_halves(torch.randn(*shape, n, generator=random), torch.randn(*shape, n, generator=random))

    blocks = experts * padded // (4 * rows)
    scales = {
        "block": torch.randn(blocks, n, generator=random),
        "half4": half_pairs(blocks, 2),
        "byte4": words(torch.int32, blocks),
    }
    base, high = words(torch.int16, experts * padded // 4), words(torch.int16, experts * padded // 4)
    planes = Planes(
        n, k, rows, base, {0: None, 2: high.to(torch.uint8), 4: high}[high_bits],
        scaling, scales[scaling],  # type: ignore[arg-type]
        half_pairs(experts * padded // 256) if scaling == "byte4" else None, scales[scaling] if has_minimum else None,
        zero, code, experts,  # type: ignore[arg-type]
    )  # fmt: skip
    expected = [[one_weight(planes, e, d, c) for d in range(k)] for e in range(experts) for c in range(n)]
    assert torch.allclose(dequantize(planes), torch.tensor(expected), rtol=1e-6, atol=1e-6)
