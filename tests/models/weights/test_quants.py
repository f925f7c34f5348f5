"""Dequantizers against gguf-py's numpy ones: the same bits."""

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.quants import CHUNK_WEIGHTS, dequantize
from tests.support.gguf_files import random_blocks

FLOATS = ("F32", "F16", "BF16")
BY_32 = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4")
BY_256 = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
KINDS = (*FLOATS, *BY_32, *BY_256)


def same_bits(ours: torch.Tensor, theirs: NDArray[np.float32]) -> bool:
    return np.array_equal(ours.numpy().view(np.uint32), np.ascontiguousarray(theirs, np.float32).view(np.uint32))


@pytest.mark.parametrize("name", KINDS)
def test_more_than_one_chunk_and_three_axes(name: str) -> None:
    kind = GGMLType[name]
    count = CHUNK_WEIGHTS // kind.block_weights + 2
    blocks = random_blocks(np.random.default_rng(5), name, (count, kind.block_weights))
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(2, count // 2, -1)
    assert same_bits(dequantize(torch.from_numpy(blocks).view(-1), kind, expected.shape), expected)


def test_every_exponent_of_mxfp4() -> None:
    """The two smallest are subnormal; 255, no number by the standard, is 2^127 for ggml."""
    codes = np.random.default_rng(4).integers(0, 256, (256, 16), np.uint8)
    blocks = np.concatenate((np.arange(256, dtype=np.uint8)[:, None], codes), 1)
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.MXFP4)
    assert same_bits(dequantize(torch.from_numpy(blocks), GGMLType.MXFP4, expected.shape), expected)
