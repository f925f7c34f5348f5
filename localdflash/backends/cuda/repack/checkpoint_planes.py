"""Linear layers of quantized safetensors checkpoints as planes.

Formats: GPTQ, AWQ, compressed-tensors (packed integers, FP8, MXFP4, NVFP4), ModelOpt (FP8, NVFP4), and the FP8 of
DeepSeek and Qwen with scales for blocks of 128 x 128. Codes are those of the file. Scales are exact, but groups of
fewer than 128 weights keep theirs in float16, and NVFP4's product of two scales is rounded to it. A layer that is not
quantized becomes int8 (quantize.py).

A reader returns a layout, the matrix' size, and a function that unpacks some of its rows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.ggml_blocks import powers_of_two
from localdflash.backends.cuda.repack.plane_packing import PlaneLayout, UnpackedRows, empty, fill, half_scales
from localdflash.backends.cuda.repack.quantize import quantize
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.planes import Planes

BLOCK = 128  # weights under one scale of "block" scaling; also the height of a block of FP8
HALF_GROUPS = (32, 64)
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)  # where a word keeps its eight columns
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
AGAIN = "download the checkpoint again"
ELSEWHERE = "use a GGUF of the model with `--backend llama.cpp`"


@dataclass(frozen=True)
class CheckpointMatrix:
    """A linear layer that can be unpacked row by row."""

    layout: PlaneLayout
    n: int
    k: int
    device: torch.device
    rows: Callable[[slice], UnpackedRows]


@dataclass(frozen=True)
class Tensors:
    """The tensors of one layer, by the ends of their names."""

    all: Mapping[str, Tensor]
    prefix: str

    def __contains__(self, name: str) -> bool:
        return f"{self.prefix}.{name}" in self.all

    def get(self, name: str, *shape: int | None) -> Tensor:
        """A tensor that must be there, of the given shape if one is given; None is any size but zero."""
        if name not in self:
            raise ModelError(f"tensor {name} is missing; {AGAIN}")
        tensor = self.all[f"{self.prefix}.{name}"]
        sizes = zip(tensor.shape, shape, strict=False)
        if shape and (tensor.dim() != len(shape) or any(size != (want or size or 1) for size, want in sizes)):
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise ModelError(f"tensor {name} is {list(tensor.shape)} instead of [{wanted}]; {AGAIN}")
        return tensor


def linear_planes(
    tensors: Mapping[str, Tensor], prefix: str, quantization_config: Mapping[str, object] | None
) -> Planes:
    """The planes of layer `prefix`, for example "model.layers.0.mlp.up_proj", on the device of its tensors.

    `quantization_config` is the object of that name in config.json. ModelError names the layer, and what is missing,
    contradictory, or not representable.
    """
    layer = Tensors(tensors, prefix)
    try:
        matrix = _reader(layer, quantization_config or {})
        if matrix is None:
            return quantize(layer.get("weight"))
        planes = empty(matrix.layout, matrix.n, matrix.k, 1, matrix.device)
        fill(planes, 0, matrix.rows)
    except ModelError as error:
        raise ModelError(f"layer {prefix}: {error}") from error
    return planes


def _reader(layer: Tensors, config: Mapping[str, object]) -> CheckpointMatrix | None:
    """The matrix of a layer, whatever its format; None if it is not quantized."""
    if "qweight" in layer:
        method = str(config.get("packing_format") or config.get("quant_method"))  # AutoRound packs like the others
        if "awq" in method:
            return _awq(layer, config)
        if "gptq" in method:
            return _gptq(layer, config)
        raise ModelError(f"the quantization method {method[:40]!r} is not supported; {ELSEWHERE}")
    if "weight_packed" in layer:
        packed = layer.get("weight_packed", None, None)
        return _packed_integers(layer) if packed.dtype == torch.int32 else _e2m1(layer, packed)
    weight = layer.get("weight", None, None)
    if weight.dtype in FLOATS:
        return None
    if weight.dtype == torch.uint8:
        return _e2m1(layer, weight)
    if weight.dtype == torch.float8_e4m3fn:
        return _fp8(layer, weight)
    raise ModelError(f"no kernel reads weights of {weight.dtype}; {ELSEWHERE}")


def _gptq(layer: Tensors, config: Mapping[str, object]) -> CheckpointMatrix:
    """Qweight int32 [k / 8, n], qzeros int32 [groups, n / 8], scales [groups, n]; or 4 codes in a word instead of 8.

    The lowest bits hold the first code. Zeros are stored minus one, except in the format "gptq_v2".
    """
    bits = config.get("bits")
    if bits not in (4, 8):
        raise ModelError(f"no kernel reads GPTQ of {bits} bits; {ELSEWHERE}")
    in_word = 32 // bits
    qweight, scales = layer.get("qweight", None, None), layer.get("scales", None, None)
    k, n, groups = qweight.shape[0] * in_word, qweight.shape[1], scales.shape[0]
    zeros = _codes(layer.get("qzeros", groups, n // in_word), bits)
    if "gptq_v2" not in (config.get("checkpoint_format"), config.get("format")):
        zeros = zeros + 1 & 2**bits - 1
    _check_order(layer, "g_idx", k, groups)
    return _integers(
        n, k, bits, layer.get("scales", groups, n).t(), zeros.t(), lambda rows: _codes(qweight[:, rows].t(), bits)
    )


def _awq(layer: Tensors, config: Mapping[str, object]) -> CheckpointMatrix:
    """Qweight int32 [k, n / 8], qzeros int32 [groups, n / 8], scales [groups, n]; eight columns in a word, shuffled."""
    kind = str(config.get("version") or config.get("format") or "gemm").lower()
    if config.get("bits", config.get("w_bit")) != 4 or ("gemm" not in kind and "awq" not in kind):
        raise ModelError(f"no kernel reads AWQ of {config.get('bits')} bits in version {kind[:40]!r}; {ELSEWHERE}")
    qweight, scales = layer.get("qweight", None, None), layer.get("scales", None, None)
    k, n, groups = qweight.shape[0], qweight.shape[1] * 8, scales.shape[0]

    def columns(words: Tensor) -> Tensor:
        return _codes(words, 4).view(len(words), -1, 8)[:, :, AWQ_NIBBLES].flatten(1).t()

    zeros = columns(layer.get("qzeros", groups, n // 8))
    return _integers(
        n,
        k,
        4,
        layer.get("scales", groups, n).t(),
        zeros,
        lambda rows: columns(qweight[:, rows.start // 8 : rows.stop // 8]),
    )


def _packed_integers(layer: Tensors) -> CheckpointMatrix:
    """compressed-tensors "pack-quantized": weight_packed int32 [n, k / 8], weight_scale [n, groups], weight_shape.

    Codes and zero points are signed numbers plus 8 (or 128); weight_zero_point int32 [n / 8, groups].
    """
    n, k = (int(size) for size in layer.get("weight_shape", 2))
    scale, packed = layer.get("weight_scale", n, None), layer.get("weight_packed", n, None)
    bits, groups = 8 if packed.shape[1] == -(-k // 4) else 4, scale.shape[1]
    layer.get("weight_packed", n, -(-k * bits // 32))
    zeros = None
    if "weight_zero_point" in layer:
        zeros = _codes(layer.get("weight_zero_point", -(-n * bits // 32), groups).t(), bits)[:, :n].t()
    _check_order(layer, "weight_g_idx", k, groups)
    return _integers(n, k, bits, scale, zeros, lambda rows: _codes(packed[rows], bits)[:, :k])


def _integers(
    n: int, k: int, bits: int, scale: Tensor, zeros: Tensor | None, codes: Callable[[slice], Tensor]
) -> CheckpointMatrix:
    """Weight = scale * (code - zero): scale [n, groups], zeros uint8 [n, groups], None for the middle of the range."""
    zero, groups = 2 ** (bits - 1), scale.shape[1]
    if zeros is not None and bool((zeros == zero).all()):
        zeros = None
    if k % groups:
        raise ModelError(f"{groups} groups do not divide {k} inputs; {AGAIN}")
    group = k // groups
    if groups == 1 or group % BLOCK == 0:
        layout = PlaneLayout(32, bits - 4, "block", zero, has_minimum=zeros is not None)
        scale = _by_block(scale, group, k)
        # The layout's zero takes the middle off, so that the minimum is small and loses nothing in the sum.
        minimum = None if zeros is None else scale * (_by_block(zeros, group, k) - zero)
    elif group in HALF_GROUPS and zeros is None:
        layout, minimum = PlaneLayout(32, bits - 4, "half4", zero), None
        scale = half_scales(scale).repeat_interleave(group // 32, 1)
    else:
        kind = "without a zero point" if zeros is None else "with zero points"
        raise ModelError(f"no kernel reads {bits}-bit groups of {group} weights {kind}; {ELSEWHERE}")

    def rows(some: slice) -> UnpackedRows:
        return UnpackedRows(codes(some), scale[some], None if minimum is None else minimum[some])

    return CheckpointMatrix(layout, n, k, scale.device, rows)


def _fp8(layer: Tensors, weight: Tensor) -> CheckpointMatrix:
    """e4m3 weights [n, k] times weight_scale: one, [n], [n, 1], or one for each block of 128 x 128 (weight_scale_inv).

    Despite its name weight_scale_inv is multiplied as well.
    """
    n, k = weight.shape
    codes = weight.view(torch.uint8)
    if bool(((codes & 127) == 127).any()):
        raise ModelError(f"its weights hold NaN; {AGAIN}")
    scale = layer.get("weight_scale_inv" if "weight_scale_inv" in layer else "weight_scale").float()
    if scale.numel() == 1:
        scale = scale.view(1, 1).expand(n, 1)
    elif scale.numel() == n and scale.shape[0] == n:
        scale = scale.view(n, 1)
    elif scale.shape == (-(-n // BLOCK), -(-k // BLOCK)):
        scale = scale.repeat_interleave(BLOCK, 0)
    else:
        raise ModelError(f"no kernel reads FP8 scales of {list(scale.shape)} for [{n}, {k}]; {ELSEWHERE}")
    scale = _by_block(scale, k if scale.shape[1] == 1 else BLOCK, k)
    layout = PlaneLayout(32, 4, "block", code="e4m3")
    return CheckpointMatrix(layout, n, k, scale.device, lambda rows: UnpackedRows(codes[rows], scale[rows]))


def _e2m1(layer: Tensors, packed: Tensor) -> CheckpointMatrix:
    """MXFP4 and NVFP4: packed uint8 [n, k / 2], low nibble first; weight_scale e8m0 [n, k / 32] or e4m3 [n, k / 16].

    NVFP4 has a second scale: weight_scale_2, to be multiplied (ModelOpt), or weight_global_scale, to be divided by.
    """
    n, k = packed.shape[0], packed.shape[1] * 2
    if layer.get("weight_scale").dtype == torch.float8_e4m3fn:
        scale = layer.get("weight_scale", n, k // 16).float()
        if "weight_scale_2" in layer:
            scale = scale * layer.get("weight_scale_2").float().view(1)
        if "weight_global_scale" in layer:
            scale = scale / layer.get("weight_global_scale").float().view(1)
        halves, layout = half_scales(scale), PlaneLayout(16, 0, "half4", code="e2m1")
        return CheckpointMatrix(
            layout, n, k, scale.device, lambda rows: UnpackedRows(_codes(packed[rows], 4), halves[rows])
        )
    exponents = layer.get("weight_scale", n, k // 32).view(torch.uint8)

    def rows(some: slice) -> UnpackedRows:
        codes = _codes(packed[some], 4)
        return UnpackedRows(codes, powers_of_two(exponents[some], codes.view(len(codes), -1, 32)))

    return CheckpointMatrix(PlaneLayout(32, 0, "half4", code="e2m1"), n, k, packed.device, rows)


def _codes(words: Tensor, bits: int) -> Tensor:
    """Codes of 4 or 8 bits, lowest bits first: integers [rows, words] -> uint8 [rows, codes]."""
    packed: Tensor = words.contiguous().view(torch.uint8)
    return packed if bits == 8 else torch.stack((packed & 15, packed >> 4), -1).flatten(1)


def _by_block(values: Tensor, group: int, k: int) -> Tensor:
    """One value for each group, [n, groups] -> one for each 128 weights, float32 [n, ceil(k / 128)]."""
    blocks = -(-k // BLOCK)
    return values.float().repeat_interleave(-(-group // BLOCK), 1)[:, :blocks]


def _check_order(layer: Tensors, name: str, k: int, groups: int) -> None:
    """Refuse groups that are no runs of neighbours (act-order)."""
    if name not in layer or groups == 1:
        return
    if not torch.equal(layer.get(name, k).cpu().long(), torch.arange(k) // (k // groups)):
        raise ModelError(f"its groups are not in order (desc_act, actorder); {ELSEWHERE}")
