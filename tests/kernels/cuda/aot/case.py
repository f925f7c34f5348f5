"""A case: launchers called with the shapes of a real model, on tensors without memory, and helpers to make those."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.repack.ggml_blocks import FORMATS
from localdflash.backends.cuda.repack.plane_packing import PlaneLayout, empty
from localdflash.kernels.cuda.norm import Norm
from localdflash.kernels.cuda.planes import Planes
from localdflash.kernels.cuda.split_k import SplitPlan, SplitWorkspace
from localdflash.models.weights.ggml_types import GGMLType

META = torch.device("meta")
# RTX 30, RTX 40, H100 and H200, RTX 50. Machine code for 89 is that for 86 but for fp8: few cases need both.
EVERY = (86, 89, 90, 120)
MOST = (86, 90, 120)
H, HQ, HKV, D, F, V = 4096, 32, 8, 128, 12288, 151936  # Qwen3-8B
SLOTS = 32768 + 16
Q4_K, Q6_K = (FORMATS[kind].layout for kind in (GGMLType.Q4_K, GGMLType.Q6_K))

Tile = Callable[[dict[str, Any]], tuple[int, int]]


def nothing(constants: dict[str, Any]) -> tuple[int, int]:
    """The tile of kernels that do not use the tensor cores."""
    raise NotImplementedError


def planes_tile(constants: dict[str, Any]) -> tuple[int, int]:
    """One block of 4R weights by BN columns, for each tile of rows; of one head for `qkv`."""
    columns = constants["BN"] if "BN" in constants else constants["D"]
    weights = columns * 4 * constants["R"]
    return weights * (4 + constants["HIGH_BITS"]) // 8, 16 * constants.get("TILES", 1) * weights


@dataclass(frozen=True)
class Case:
    """A call. `tile`: from compile-time arguments, what one round of the main loop streams and computes."""

    name: str
    launch: Callable[[], None]
    tile: Tile = nothing  # bytes of weights or of K and V; multiply-adds
    capabilities: tuple[int, ...] = MOST


def floats(*shape: int) -> Tensor:
    """Float32."""
    return torch.empty(*shape, device=META)


def halves(*shape: int) -> Tensor:
    """Float16."""
    return torch.empty(*shape, dtype=torch.float16, device=META)


def ints(*shape: int) -> Tensor:
    """Int32."""
    return torch.empty(*shape, dtype=torch.int32, device=META)


def planes(n: int, k: int, layout: PlaneLayout, experts: int = 1) -> Planes:
    """Weights [n, k]."""
    return empty(layout, n, k, experts, META)


def rows(k: int, *tiles: int) -> tuple[Tensor, Tensor]:
    """Activations of 16 rows, or of so many tiles of them, and their sums."""
    return halves(*tiles, 16, k), floats(*tiles, k // 32, 16)


def norm(size: int = H, *tiles: int) -> Norm:
    """The norm of a residual stream."""
    squares, before = (floats(*tiles, size // 128, 16) for _ in range(2))
    return Norm(squares, before, size, 1e-6)


def workspace() -> SplitWorkspace:
    """Large enough for anything."""
    return SplitWorkspace(META, [SplitPlan(1024, 128, 8)])
