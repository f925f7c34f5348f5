"""Opt-in FP4 mode of Blackwell RTX: FP4 weights times activations rounded to FP4, which changes the text.

A native GEMM writes its product, which the fused kernels read: two more launches for each matrix.
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
from localdflash.kernels.cuda.split_k import MOST_TILES, ROWS, SplitPlan, SplitWorkspace


@dataclass(frozen=True)
class _Native:
    planes: Planes
    matrix: Fp4Matrix
    rows: Fp4Rows


class NativeFp4:
    """The matrices of a target in FP4, and operations that know them by the planes that stand for them."""

    def __init__(self) -> None:
        self._natives: dict[int, _Native] = {}
        self._products: dict[int, Tensor] = {}  # by width: matrices of a width run one after another

    def convert(self, target: TargetWeights) -> TargetWeights:
        """Return the target with its FP4 matrices converted; ModelError if it has none."""
        layers = []
        for layer in target.layers:
            heads = tuple(replace(part, planes=self._native(part.planes)) for part in layer.qkv)
            mlp = layer.mlp
            if isinstance(mlp, Dense):
                mlp = Dense(self._native(mlp.gate_up), self._native(mlp.down))
            layers.append(replace(layer, qkv=heads, output=self._native(layer.output), mlp=mlp))
        if not self._natives:
            raise ModelError("the FP4 mode needs a target with MXFP4 or NVFP4 weights: leave out --native-fp4")
        return replace(target, layers=tuple(layers))

    def plans(self) -> list[SplitPlan]:
        """Return what the GEMMs need of the workspace."""
        return [plan(native.matrix) for native in self._natives.values()]

    def ops(self) -> Ops:
        """Return the kernels; where a matrix is FP4, its GEMM runs first and they take over its product."""
        return replace(
            KERNELS,
            qkv=self._after_product(KERNELS.qkv),
            residual=self._after_product(KERNELS.residual),
            swiglu=self._after_product(KERNELS.swiglu),
        )

    def _native(self, planes: Planes) -> Planes:
        """Return the planes of the product that an FP4 matrix makes; other planes stay."""
        if planes.code != "e2m1" or planes.experts != 1:
            return planes
        matrix, width = fp4_matrix(planes), -(-planes.n // COLUMNS) * COLUMNS
        if width not in self._products:
            self._products[width] = torch.zeros(MOST_TILES * ROWS, width, device=planes.base.device)
        product = self._products[width]
        stand_in = Planes(planes.n, planes.k, 32, product, None, "product", product)
        self._natives[id(stand_in)] = _Native(stand_in, matrix, Fp4Rows.empty(matrix))
        return stand_in

    def _after_product(self, op: Callable[..., None]) -> Callable[..., None]:
        def run(a: Tensor, sums: Tensor, planes: Planes, *rest: Any, **options: Any) -> None:
            native = self._natives.get(id(planes))
            if native:
                workspace = next(item for item in (*rest, *options.values()) if isinstance(item, SplitWorkspace))
                for tile, product in zip(a.view(-1, ROWS, a.shape[-1]), planes.base.split(ROWS), strict=False):
                    quantize_rows_fp4(tile, native.rows)
                    fp4_matmul(native.rows, native.matrix, product, workspace)
            op(a, sums, planes, *rest, **options)

        return run
