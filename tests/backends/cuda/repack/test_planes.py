"""GGUF blocks as planes against gguf-py's numpy dequantizers."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from localdflash.backends.cuda.repack import ggml_blocks
from localdflash.backends.cuda.repack.ggml_blocks import FORMATS, quantize
from localdflash.backends.cuda.repack.gguf_planes import load_planes, planes_of_blocks, scaled
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import Planes
from localdflash.models.weights.ggml_types import GGMLType
from localdflash.models.weights.gguf import GGUFHeader, read_header
from tests.support.gguf_files import random_blocks

FLOATS = ("F32", "F16", "BF16")
EXACT = [kind.name for kind in FORMATS if kind.name not in FLOATS]
Tensors = dict[str, tuple[str, NDArray[Any]]]


def random_matrix(name: str, n: int, k: int, seed: int = 0) -> NDArray[np.uint8]:
    return random_blocks(np.random.default_rng(seed), name, (n, k))


def oracle(name: str, raw: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float32))


def repacked(name: str, raw: NDArray[np.uint8], k: int, experts: int = 1) -> Planes:
    return planes_of_blocks(torch.from_numpy(raw), GGMLType[name], len(raw) // experts, k, experts)


def write_gguf(path: Path, tensors: Tensors) -> GGUFHeader:
    """A file with tensors of the given types, raw bytes [..., n, bytes of a row]."""
    writer = gguf.GGUFWriter(path, "qwen3")
    for name, (kind, raw) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_header(path)


@pytest.mark.parametrize("name", EXACT)
def test_planes_match_the_file_and_padding_is_zero(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several chunks, for several experts."""
    monkeypatch.setattr(ggml_blocks, "CHUNK_WEIGHTS", 256 * 128)
    raw = random_matrix(name, 3 * 131, 256)
    planes = repacked(name, raw, 256, experts=3)
    assert (planes.n, planes.k, planes.padded_n, planes.padded_k) == (131, 256, 256, 256)
    rounding = 2.0**-11 if name == "Q6_K" else 0.0  # a code times its sub-scale is rounded to float16
    torch.testing.assert_close(planes.dense, oracle(name, raw), rtol=rounding, atol=0)
    for tensor in (planes.base, planes.high, planes.scale, planes.supers, planes.minimum):
        assert tensor is None or not tensor[..., 131:].any()


def test_extreme_scales() -> None:
    raw = random_matrix("MXFP4", 4, 64)
    raw[1, 0] = 127 - 25  # beyond float16
    with pytest.raises(ModelError, match=r"MXFP4 .*2\^-25.*llama.cpp"):
        repacked("MXFP4", raw, 64)
    raw[1, 1:17] = 0x80  # 0 and -0: the scale does not matter
    assert torch.equal(repacked("MXFP4", raw, 64).dense, oracle("MXFP4", raw))
    raw = random_matrix("NVFP4", 4, 64)
    raw[2, :4] = (0, 127, 126, 1)  # 127 is zero
    assert torch.equal(repacked("NVFP4", raw, 64).dense, oracle("NVFP4", raw))


@pytest.mark.parametrize(("name", "factor"), [("Q4_1", 2.0**40), ("Q6_K", 2.0**-30), ("F16", None)])
def test_scaled_is_exact_or_refused(name: str, factor: float | None) -> None:
    planes = repacked(name, random_matrix(name, 8, 256), 256)
    assert torch.equal(scaled(planes, 16).dense, planes.dense * 16)
    if factor:
        with pytest.raises(ModelError, match="float16"):
            scaled(planes, factor)


def test_interleaved_experts_are_loaded(tmp_path: Path) -> None:
    gate, up = (random_matrix("Q8_0", 3 * 6, 64, seed).reshape(3, 6, -1) for seed in (1, 2))
    header = write_gguf(tmp_path / "model.gguf", {"gate": ("Q8_0", gate), "up": ("Q8_0", up)})
    planes = load_planes(header, ["gate", "up"], "cpu", interleave=True)
    dense = planes.dense.view(3, 6, 2, 64)
    assert (planes.experts, planes.n) == (3, 12)
    assert torch.equal(dense[:, :, 0], oracle("Q8_0", gate))
    assert torch.equal(dense[:, :, 1], oracle("Q8_0", up))


def test_nvfp4_second_scales(tmp_path: Path) -> None:
    raw = random_matrix("NVFP4", 2 * 4, 64).reshape(2, 4, -1)
    raw[..., :4] = raw[..., :4] % 80 + 24
    factors = np.array([0.7, 1.3], np.float32)
    tensors: Tensors = {"x.weight": ("NVFP4", raw), "x.scale": ("F32", factors)}
    planes = load_planes(write_gguf(tmp_path / "model.gguf", tensors), ["x.weight"], "cpu")
    expected = oracle("NVFP4", raw) * torch.from_numpy(factors).view(2, 1, 1)
    assert torch.allclose(planes.dense.view(2, 4, 64), expected, rtol=2**-11, atol=0)
    header = write_gguf(tmp_path / "model.gguf", tensors | {"x.weight": ("NVFP4", raw[0])})
    with pytest.raises(ModelError, match=r"x\.scale"):  # one too many
        load_planes(header, ["x.weight"], "cpu")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["a", "gone"], "gone"),
        (["a", "other_type"], r"a \(Q8_0\), other_type \(Q4_0\) .*llama.cpp"),
        (["a", "deeper"], "a .*deeper .*llama.cpp"),
        (["a", "higher"], "a .*higher .*llama.cpp"),
        (["odd"], r"odd.* Q5_1.*llama.cpp"),
        (["vector"], r"vector .*\[32\]"),
    ],
)
def test_unsupported_tensors_are_refused(names: list[str], problem: str, tmp_path: Path) -> None:
    """Of one matrix, or of two in turn."""
    tensors: Tensors = {
        "a": ("Q8_0", random_matrix("Q8_0", 2, 64)),
        "other_type": ("Q4_0", random_matrix("Q4_0", 2, 64)),
        "deeper": ("Q8_0", random_matrix("Q8_0", 2, 128)),
        "higher": ("Q8_0", random_matrix("Q8_0", 3, 64)),
        "odd": ("Q5_1", np.zeros((2, 24), np.uint8)),
        "vector": ("F32", np.zeros(32, np.float32)),
    }
    header = write_gguf(tmp_path / "model.gguf", tensors)
    with pytest.raises(ModelError, match=problem) as caught:
        load_planes(header, names, "cpu", interleave="higher" in names)
    assert str(header.path) in str(caught.value)


# Float weights, quantized at load


def written_out(weights: torch.Tensor, bits: int) -> torch.Tensor:
    limit = 2 ** (bits - 1) - 1
    result = torch.zeros_like(weights)
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], 128):
            some = weights[row, start : start + 128]
            scale = some.abs().max() / limit
            for i, weight in enumerate(some):
                result[row, start + i] = scale * round(float(weight / scale)) if scale else 0
    return result


@pytest.mark.parametrize(("bits", "k"), [(8, 300), (4, 256)])
def test_quantized_float_weights_match_the_definition(bits: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml_blocks, "CHUNK_WEIGHTS", 1)
    weights = torch.randn(3, k, generator=torch.Generator().manual_seed(bits))
    weights[1, :128] = 0
    planes = quantize(weights, bits)
    assert (planes.n, planes.k, planes.scaling, planes.high_bits) == (3, k, "block", bits - 4)
    assert torch.allclose(planes.dense, written_out(weights, bits), rtol=1e-6, atol=0)


@pytest.mark.parametrize("magnitude", [3.0, 1e-38, 3e-45, 1e38])
def test_extreme_float_weights_stay_finite(magnitude: float) -> None:
    weights = torch.full((1, 128), magnitude)
    weights[0, 1::2], weights[0, 2::4] = 0, -magnitude
    for bits in (8, 4):
        assert torch.allclose(quantize(weights, bits).dense, weights, rtol=0.01, atol=1e-40)
