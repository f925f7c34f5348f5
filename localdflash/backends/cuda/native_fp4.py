"""Optional FP4 mode on Blackwell RTX. It rounds activations to FP4 too, so the generated text can differ.

Each FP4 matrix costs two more launches per tile of 16 tokens: one quantizes the activations, one multiplies in FP4. The
fused kernel then reads the product. `Planes` are a quantized matrix as separate arrays of codes and scales.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.ops import KERNELS, Ops
from localdflash.backends.cuda.weights import Dense, TargetWeights
from localdflash.base.errors import ModelError
from localdflash.kernels.cuda.fp4 import Fp4Matrix, Fp4Rows, fp4_matmul, fp4_matrix, plan, quantize_rows_fp4
from localdflash.kernels.cuda.planes import COLUMNS, Planes
from localdflash.kernels.cuda.split_k import MAX_TILES, ROWS, SplitPlan, SplitWorkspace


@dataclass(frozen=True)
class _Fp4Entry:
    placeholder: Planes  # referenced here so that its id stays unique
    matrix: Fp4Matrix
    rows: Fp4Rows  # activations in FP4


class NativeFp4:
    """Replaces a target's FP4 weights by placeholder `Planes`, and wraps the kernels to run FP4 GEMMs for these."""

    def __init__(self) -> None:
        self._entries: dict[int, _Fp4Entry] = {}  # by id of the placeholder
        self._products: dict[int, Tensor] = {}  # by width: matrices of equal width share a buffer

    def convert(self, target: TargetWeights) -> TargetWeights:
        """Return the target with placeholders for its FP4 matrices; ModelError if it has none."""
        layers = []
        for layer in target.layers:
            qkv = tuple(replace(part, planes=self._convert(part.planes)) for part in layer.qkv)
            mlp = layer.mlp
            if isinstance(mlp, Dense):
                mlp = Dense(self._convert(mlp.gate_up), self._convert(mlp.down))
            layers.append(replace(layer, qkv=qkv, output=self._convert(layer.output), mlp=mlp))
        if not self._entries:
            raise ModelError("--native-fp4: needs a target with MXFP4 or NVFP4 weights; leave it out")
        return replace(target, layers=tuple(layers))

    def plans(self) -> list[SplitPlan]:
        """Return the plans of the FP4 GEMMs, from which their workspace is sized."""
        return [plan(fp4.matrix) for fp4 in self._entries.values()]

    def ops(self) -> Ops:
        """Return the kernels, which for a placeholder run the FP4 GEMM first and then read its product."""
        return replace(
            KERNELS,
            qkv=self._after_product(KERNELS.qkv),
            residual=self._after_product(KERNELS.residual),
            swiglu=self._after_product(KERNELS.swiglu),
        )

    def _convert(self, planes: Planes) -> Planes:
        """For an FP4 matrix, return a placeholder that will hold its product; return other planes unmodified."""
        if planes.code != "e2m1" or planes.experts != 1:
            return planes
        matrix, width = fp4_matrix(planes), -(-planes.n // COLUMNS) * COLUMNS
        if width not in self._products:
            self._products[width] = torch.zeros(MAX_TILES * ROWS, width, device=planes.base.device)
        product = self._products[width]
        placeholder = Planes(planes.n, planes.k, 32, product, None, "product", product)
        self._entries[id(placeholder)] = _Fp4Entry(placeholder, matrix, Fp4Rows.empty(matrix))
        return placeholder

    def _after_product(self, op: Callable[..., None]) -> Callable[..., None]:
        def run(a: Tensor, sums: Tensor, planes: Planes, *rest: Any, **options: Any) -> None:
            fp4 = self._entries.get(id(planes))
            if fp4:
                workspace = next(item for item in (*rest, *options.values()) if isinstance(item, SplitWorkspace))
                for tile, product in zip(a.view(-1, ROWS, a.shape[-1]), planes.base.split(ROWS), strict=False):
                    quantize_rows_fp4(tile, fp4.rows)
                    fp4_matmul(fp4.rows, fp4.matrix, product, workspace)
            op(a, sums, planes, *rest, **options)

        return run
