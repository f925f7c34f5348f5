"""Quantized checkpoints as planes: every format is packed here, and dequantized by the formula for one weight."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from localdflash.backends.cuda.repack import plane_packing
from localdflash.backends.cuda.repack.checkpoint_planes import linear_planes
from localdflash.backends.cuda.repack.gguf_planes import in_turn, join
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import E2M1

PREFIX = "model.layers.0.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane_packing, "CHUNK_WEIGHTS", 1)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def randint(random: torch.Generator, high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=random)


def halves(random: torch.Generator, *shape: int) -> Tensor:
    return (torch.randn(*shape, generator=random) * 0.01).half()


def words(codes: Tensor, bits: int) -> Tensor:
    """[..., codes] -> int32 [..., words], the first code in the lowest bits."""
    in_word = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % in_word))
    runs = padded.long().view(*codes.shape[:-1], -1, in_word)
    total = sum(runs[..., i] << (bits * i) for i in range(in_word))
    assert isinstance(total, Tensor)
    return total.to(torch.int32)


def bytes_of_pairs(codes: Tensor) -> Tensor:
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).to(torch.uint8)


def named(**tensors: Tensor) -> dict[str, Tensor]:
    return {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()}


def each(n: int, k: int, weight: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The weights by a formula in their row r and column c."""
    rows, columns = torch.meshgrid(torch.arange(n), torch.arange(k), indexing="ij")
    return weight(rows, columns).expand(n, k)


def gptq(
    random: torch.Generator, n: int, k: int, group: int, bits: int = 4, symmetric: bool = True, stored: int = 1
) -> tuple[dict[str, Tensor], Tensor]:
    """A layer, and its weights. `stored` is subtracted from the zeros in the file."""
    codes, scales = randint(random, 2**bits, n, k), halves(random, n, k // group)
    zeros = randint(random, 2**bits, n, k // group)
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    tensors = named(
        qweight=words(codes, bits).t().contiguous(),
        qzeros=words((zeros.t() - stored) % 2**bits, bits),
        scales=scales.t().contiguous(),
        g_idx=(torch.arange(k) // group).int(),
    )
    weights = each(n, k, lambda r, c: scales.float()[r, c // group] * (codes[r, c] - zeros[r, c // group]))
    return tensors, weights


@pytest.mark.parametrize("group", [32, 64, 128, 256, 512])
@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_gptq(random: torch.Generator, bits: int, group: int) -> None:
    tensors, weights = gptq(random, 136, 512, group, bits)
    planes = linear_planes(tensors, PREFIX, {**GPTQ, "bits": bits})
    assert (planes.n, planes.k, planes.high_bits, planes.minimum) == (136, 512, bits - 4, None)
    assert planes.scaling == ("half4" if group < 128 else "block")
    assert torch.equal(planes.dense, weights)


@pytest.mark.parametrize(
    "config", [GPTQ, {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}]
)
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_with_zero_points(random: torch.Generator, bits: int, config: dict[str, object]) -> None:
    tensors, weights = gptq(random, 136, 256, 128, bits, symmetric=False)
    planes = linear_planes(tensors, PREFIX, {**config, "bits": bits})
    assert planes.minimum is not None
    assert torch.allclose(planes.dense, weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("field", ["checkpoint_format", "format"])
def test_gptq_v2_stores_zeros_as_they_are(random: torch.Generator, field: str) -> None:
    tensors, weights = gptq(random, 8, 256, 128, symmetric=False, stored=0)
    planes = linear_planes(tensors, PREFIX, {**GPTQ, field: "gptq_v2"})
    assert torch.allclose(planes.dense, weights, rtol=1e-6, atol=1e-9)


def test_one_group_whose_size_is_no_multiple(random: torch.Generator) -> None:
    tensors, weights = gptq(random, 8, 200, 200)
    assert torch.equal(linear_planes(tensors, PREFIX, GPTQ).dense, weights)


def test_act_order_is_refused(random: torch.Generator) -> None:
    tensors, _ = gptq(random, 8, 256, 128)
    tensors[f"{PREFIX}.g_idx"] = tensors[f"{PREFIX}.g_idx"].flip(0)
    with pytest.raises(ModelError, match=rf"{PREFIX}: its groups are not in order.*llama.cpp"):
        linear_planes(tensors, PREFIX, {**GPTQ, "desc_act": True})


@pytest.mark.parametrize(("group", "symmetric"), [(64, False), (16, True)])
def test_groups_that_planes_cannot_hold(random: torch.Generator, group: int, symmetric: bool) -> None:
    tensors, _ = gptq(random, 8, 256, group, symmetric=symmetric)
    with pytest.raises(ModelError, match=rf"{PREFIX}: no kernel reads 4-bit groups of {group} weights with.*llama.cpp"):
        linear_planes(tensors, PREFIX, GPTQ)


@pytest.mark.parametrize("group", [128, 256])
def test_awq(random: torch.Generator, group: int) -> None:
    n, k = 264, 256
    codes, zeros = randint(random, 16, n, k), randint(random, 16, n, k // group)
    scales = halves(random, n, k // group)

    def shuffled(numbers: Tensor) -> Tensor:
        """[k, n] with the columns of each eight in the order in which AWQ packs them."""
        order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
        return numbers.view(len(numbers), -1, 8)[:, :, order].flatten(1)

    tensors = named(
        qweight=words(shuffled(codes.t().contiguous()), 4),
        qzeros=words(shuffled(zeros.t().contiguous()), 4),
        scales=scales.t().contiguous(),
    )
    weights = each(n, k, lambda r, c: scales.float()[r, c // group] * (codes[r, c] - zeros[r, c // group]))
    assert torch.allclose(linear_planes(tensors, PREFIX, AWQ).dense, weights, rtol=1e-6, atol=1e-9)
    with pytest.raises(ModelError, match="gemv"):
        linear_planes(tensors, PREFIX, {**AWQ, "version": "gemv"})


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("bits", "group"), [(4, 128), (8, 128), (4, 250), (4, 32)])
def test_packed_integers_of_compressed_tensors(random: torch.Generator, bits: int, group: int, symmetric: bool) -> None:
    n, k, middle = 130, {250: 250}.get(group, 256), 2 ** (bits - 1)
    signed, zeros = randint(random, 2**bits, n, k) - middle, randint(random, 2**bits, n, k // group) - middle
    scales = halves(random, n, k // group).bfloat16()
    tensors = named(weight_packed=words(signed + middle, bits), weight_scale=scales, weight_shape=torch.tensor([n, k]))
    if symmetric:
        zeros = torch.zeros_like(zeros)
    else:
        tensors |= named(weight_zero_point=words((zeros + middle).t(), bits).t().contiguous())
    if group == 32 and not symmetric:
        with pytest.raises(ModelError, match="groups of 32 weights with zero points"):
            linear_planes(tensors, PREFIX, None)
        return
    weights = each(n, k, lambda r, c: scales.float()[r, c // group] * (signed[r, c] - zeros[r, c // group]))
    dense = linear_planes(tensors, PREFIX, {"quant_method": "compressed-tensors", "format": "pack-quantized"}).dense
    assert torch.allclose(dense, weights, rtol=1e-6 if group > 32 else 2**-11, atol=1e-8)


def test_zero_points_packed_along_the_rows(random: torch.Generator) -> None:
    """The oracle above packs with `words`; here one word is spelled out: row 9 lies in word 1, second nibble."""
    zero_point = torch.full((2, 1), 0x88888888 - 2**32).int()
    zero_point[1, 0] ^= 0x30  # 8 ^ 3 = 11 = 3 + 8
    tensors = named(
        weight_packed=torch.full((16, 16), 0x88888888 - 2**32).int(),
        weight_scale=torch.ones(16, 1),
        weight_shape=torch.tensor([16, 128]),
        weight_zero_point=zero_point,
    )
    expected = torch.zeros(16, 128)
    expected[9] = -3
    assert torch.equal(linear_planes(tensors, PREFIX, None).dense, expected)


def fp8(random: torch.Generator, n: int, k: int) -> Tensor:
    codes = randint(random, 256, n, k).to(torch.uint8)
    codes[(codes & 127) == 127] = 0
    return codes.view(torch.float8_e4m3fn)


FP8_SCALES: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "tensor": ((), lambda s, _r, _c: s),
    "tensor [1]": ((1,), lambda s, _r, _c: s[0]),
    "channel": ((200, 1), lambda s, r, _c: s[r, 0]),
    "channel [n]": ((200,), lambda s, r, _c: s[r]),
    "block": ((2, 3), lambda s, r, c: s[r // 128, c // 128]),
}


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("kind", FP8_SCALES)
def test_fp8(random: torch.Generator, kind: str, name: str) -> None:
    shape, at = FP8_SCALES[kind]
    weight, scale = fp8(random, 200, 300), torch.rand(shape, generator=random)
    planes = linear_planes(named(weight=weight, **{name: scale}), PREFIX, {"quant_method": "fp8"})
    assert planes.code == "e4m3"
    assert torch.equal(planes.dense, each(200, 300, lambda r, c: weight.float()[r, c] * at(scale, r, c)))


def test_fp8_nan_and_odd_scales(random: torch.Generator) -> None:
    weight = fp8(random, 8, 256)
    with pytest.raises(ModelError, match=r"FP8 scales of \[4, 1\] for \[8, 256\]"):
        linear_planes(named(weight=weight, weight_scale=torch.ones(4, 1)), PREFIX, None)
    weight.view(torch.uint8)[3, 5] = 255
    with pytest.raises(ModelError, match="hold NaN"):
        linear_planes(named(weight=weight, weight_scale=torch.ones(1)), PREFIX, None)


def test_mxfp4(random: torch.Generator) -> None:
    codes, exponents = randint(random, 16, 130, 96), randint(random, 40, 130, 3) + 103
    tensors = named(weight_packed=bytes_of_pairs(codes), weight_scale=exponents.to(torch.uint8))
    planes = linear_planes(tensors, PREFIX, {"format": "mxfp4-pack-quantized"})
    weights = each(130, 96, lambda r, c: torch.tensor(E2M1)[codes[r, c]] * 2.0 ** (exponents[r, c // 32] - 127).float())
    assert torch.equal(planes.dense, weights)
    tensors[f"{PREFIX}.weight_scale"][0, 0] = 90
    with pytest.raises(ModelError, match=rf"{PREFIX}: MXFP4 scales .*llama.cpp"):
        linear_planes(tensors, PREFIX, None)


@pytest.mark.parametrize("kind", ["compressed-tensors", "modelopt", "no second scale"])
def test_nvfp4(random: torch.Generator, kind: str) -> None:
    codes = randint(random, 16, 130, 80)
    scale = (torch.rand(130, 5, generator=random) * 440).to(torch.float8_e4m3fn)
    tensors, second = {
        "compressed-tensors": (
            named(weight_packed=bytes_of_pairs(codes), weight_global_scale=torch.tensor([3000.0])),
            1 / 3000,
        ),
        "modelopt": (named(weight=bytes_of_pairs(codes), weight_scale_2=torch.tensor(0.0007)), 0.0007),
        "no second scale": (named(weight_packed=bytes_of_pairs(codes)), 1.0),
    }[kind]
    planes = linear_planes({**tensors, **named(weight_scale=scale)}, PREFIX, None)
    assert (planes.code, planes.rows) == ("e2m1", 16)
    weights = each(130, 80, lambda r, c: torch.tensor(E2M1)[codes[r, c]] * scale.float()[r, c // 16] * second)
    rounding = 0 if second == 1 else 2**-11
    assert torch.allclose(planes.dense, weights, rtol=rounding, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_layer_that_is_not_quantized(random: torch.Generator, dtype: torch.dtype) -> None:
    weight = torch.randn(8, 256, generator=random).to(dtype)
    dense = linear_planes(named(weight=weight), PREFIX, GPTQ).dense
    assert (dense - weight.float()).abs().max() <= weight.float().abs().max() / 127 * 0.501


def test_join_gate_and_up(random: torch.Generator) -> None:
    layers = [gptq(random, 136, 256, 128) for _ in range(2)]
    gate, up = (linear_planes(tensors, PREFIX, GPTQ) for tensors, _ in layers)
    dense = join([gate, up], in_turn(136)).dense
    assert torch.equal(dense[0::2], layers[0][1])
    assert torch.equal(dense[1::2], layers[1][1])


def broken_layers() -> Iterator[tuple[dict[str, Tensor], dict[str, object], str]]:
    tensors, _ = gptq(torch.Generator().manual_seed(0), 8, 256, 128)
    less = {name: tensor for name, tensor in tensors.items() if not name.endswith("qzeros")}
    yield less, GPTQ, "tensor qzeros is missing; download"
    yield {**tensors, **named(scales=torch.ones(2, 7))}, GPTQ, r"scales is \[2, 7\] instead of \[2, 8\]"
    yield {**tensors, **named(scales=torch.ones(2))}, GPTQ, r"scales is \[2\] instead of \[any, any\]"
    yield {**tensors, **named(scales=torch.ones(0, 8))}, GPTQ, r"scales is \[0, 8\] instead"
    odd = {**tensors, **named(scales=torch.ones(3, 8), qzeros=torch.zeros(3, 1).int())}
    del odd[f"{PREFIX}.g_idx"]
    yield odd, GPTQ, "3 groups do not divide 256"
    yield tensors, {**GPTQ, "bits": 3}, "GPTQ of 3 bits"
    yield tensors, {"quant_method": "hqq"}, "quantization method 'hqq'"
    yield tensors, {}, "quantization method 'None'"
    yield named(weight=torch.zeros(2, 2, dtype=torch.int64)), {}, r"weights of torch.int64"
    yield named(weight=torch.zeros(2, 2, 2)), {}, r"weight is \[2, 2, 2\] instead"
    yield named(), {}, "tensor weight is missing"
    packed = named(weight_packed=torch.zeros(2, 2).int(), weight_shape=torch.tensor([2, 128]))
    yield packed, {}, "weight_scale is missing"
    yield {**packed, **named(weight_scale=torch.ones(2, 1))}, {}, r"packed is \[2, 2\] instead of \[2, 16\]"


@pytest.mark.parametrize(("tensors", "config", "problem"), list(broken_layers()))
def test_refused(tensors: dict[str, Tensor], config: dict[str, object], problem: str) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        linear_planes(tensors, PREFIX, config)
    assert str(caught.value).startswith(f"layer {PREFIX}: ")
    assert "\n" not in str(caught.value)
