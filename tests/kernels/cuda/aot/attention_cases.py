"""Attention over the context, for each mask and each type of keys and values."""

from functools import partial
from typing import Any

import torch

from localdflash.kernels.cuda.attention import Mask, Scratch, attention
from localdflash.kernels.cuda.kv_cache import Cache
from tests.kernels.cuda.aot.case import EVERY, HKV, HQ, META, SLOTS, Case, D, H, halves, ints, rows

TYPES = {"fp16": torch.float16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
CHUNKS = 128


def _attention(mask: Mask, kind: str, window: int = 0, splits: int = 8) -> None:
    cache = Cache.empty(1, SLOTS, HKV, D, TYPES[kind], META).layer(0)
    scratch = Scratch(META, HQ, D, CHUNKS)
    q, start = halves(16, HQ, D), ints(8)[0:1]
    attention(q, cache, start, *rows(H), scratch, mask, window=window, splits=splits)


def _case(name: str, capabilities: tuple[int, ...], mask: Mask, kind: str = "fp16", **options: int) -> Case:
    def tile(constants: dict[str, Any]) -> tuple[int, int]:
        elements = 2 * constants["TILE"] * constants["D"]
        return elements * TYPES[kind].itemsize, elements * constants["M"]

    return Case(f"attention {name}", partial(_attention, mask, kind, **options), tile, capabilities)


CASES = (
    _case("fp16", EVERY, "chain", splits=CHUNKS),
    _case("int8", EVERY, "chain", "int8"),
    _case("fp8", EVERY, "chain", "fp8"),
    _case("block", (120,), "block"),
    _case("window", (120,), "block", window=2048),
)
