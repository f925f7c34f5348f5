"""Optional FP4 mode on Blackwell RTX: FP4 weights times activations rounded to FP4, which changes the text.

A GEMM in FP4 writes its product, which the fused kernels read: two more launches for each matrix and tile.
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
class _Native:
    planes: Planes
    matrix: Fp4Matrix
    rows: Fp4Rows


class NativeFp4:
    """FP4 matrices of a target, and operations that find them by the planes that stand in for them."""

    def __init__(self) -> None:
        self._natives: dict[int, _Native] = {}
        self._products: dict[int, Tensor] = {}  # by width: matrices of one width share a buffer

    def convert(self, target: TargetWeights) -> TargetWeights:
        """Return the target with stand-ins for its FP4 matrices; ModelError if it has none."""
        layers = []
        for layer in target.layers:
            heads = tuple(replace(part, planes=self._convert(part.planes)) for part in layer.qkv)
            mlp = layer.mlp
            if isinstance(mlp, Dense):
                mlp = Dense(self._convert(mlp.gate_up), self._convert(mlp.down))
            layers.append(replace(layer, qkv=heads, output=self._convert(layer.output), mlp=mlp))
        if not self._natives:
            raise ModelError("--native-fp4: needs a target with MXFP4 or NVFP4 weights; leave it out")
        return replace(target, layers=tuple(layers))

    def plans(self) -> list[SplitPlan]:
        """Return the workspace requirements of the GEMMs."""
        return [plan(fp4.matrix) for fp4 in self._natives.values()]

    def ops(self) -> Ops:
        """Return the kernels; for an FP4 matrix its GEMM runs first, and the kernel reads the product."""
        return replace(
            KERNELS,
            qkv=self._after_product(KERNELS.qkv),
            residual=self._after_product(KERNELS.residual),
            swiglu=self._after_product(KERNELS.swiglu),
        )

    def _convert(self, planes: Planes) -> Planes:
        """Return planes that will hold an FP4 matrix's product; return other planes unmodified."""
        if planes.code != "e2m1" or planes.experts != 1:
            return planes
        matrix, width = fp4_matrix(planes), -(-planes.n // COLUMNS) * COLUMNS
        if width not in self._products:
            self._products[width] = torch.zeros(MAX_TILES * ROWS, width, device=planes.base.device)
        product = self._products[width]
        stand_in = Planes(planes.n, planes.k, 32, product, None, "product", product)
        self._natives[id(stand_in)] = _Native(stand_in, matrix, Fp4Rows.empty(matrix))
        return stand_in

    def _after_product(self, op: Callable[..., None]) -> Callable[..., None]:
        def run(a: Tensor, sums: Tensor, planes: Planes, *rest: Any, **options: Any) -> None:
            fp4 = self._natives.get(id(planes))
            if fp4:
                workspace = next(item for item in (*rest, *options.values()) if isinstance(item, SplitWorkspace))
                for tile, product in zip(a.view(-1, ROWS, a.shape[-1]), planes.base.split(ROWS), strict=False):
                    quantize_rows_fp4(tile, fp4.rows)
                    fp4_matmul(fp4.rows, fp4.matrix, product, workspace)
            op(a, sums, planes, *rest, **options)

        return run
