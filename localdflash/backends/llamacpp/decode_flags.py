"""Decode modes: flags of llama.cpp that affect a row's bits, and the batch widths in use.

In llama.cpp batches of one token, of four, and of eight or more run different kernels. A pair uses one class of
bit-identical widths (see `classes`) and pads narrower batches with filler rows, which are rolled back at once.
"""

from dataclasses import dataclass, replace

import llama_cpp.llama_cpp as api

MAX_WIDTH = 32  # maximum rows of a batch
MAX_WIDTH_WITH_STATES = 16  # maximum with recurrent layers: llama.cpp keeps their large states after each row
PADDED_TOKENS = 256  # the attended part of the KV cache grows in steps of this many tokens
TYPES = {  # ggml_type
    "f32": api.GGML_TYPE_F32,
    "f16": api.GGML_TYPE_F16,
    "bf16": 30,
    "q8_0": api.GGML_TYPE_Q8_0,
    "q4_0": api.GGML_TYPE_Q4_0,
}
KV_TYPES = {"int8": ("q8_0", "q8_0"), "k8v4": ("q8_0", "q4_0")}  # of K and V, by option `kv`; others: as measured


@dataclass(frozen=True)
class Flags:
    """Settings of a model and its context; the defaults are llama.cpp's on a CPU.

    With different types for K and V, flash attention on a CPU takes one path for all batch widths.
    """

    repack: bool = True  # reorder weights for the processor's kernels
    flash: bool = True
    keys: str = "f16"
    values: str = "f16"

    def apply(self, params: object) -> None:
        """Set the parameters of a context."""
        params.flash_attn_type = int(self.flash)  # type: ignore[attr-defined]  # ctypes
        params.type_k, params.type_v = TYPES[self.keys], TYPES[self.values]  # type: ignore[attr-defined]

    def with_kv(self, kv: str) -> "Flags":
        """Return the flags with the KV cache types of an option `kv`; quantized values need flash attention."""
        if kv not in KV_TYPES:
            return self
        keys, values = KV_TYPES[kv]
        return replace(self, flash=True, keys=keys, values=values)


RAW = Flags()
ONE_PATH = Flags(values="bf16")
NOT_REPACKED = Flags(repack=False, values="bf16")
ON_PROCESSOR, ON_GPU = (ONE_PATH, NOT_REPACKED), (Flags(flash=False), RAW)  # tried in this order


@dataclass(frozen=True)
class DecodeMode:
    """Flags and ascending batch widths; with `borders` a row's bits change where the padded KV cache grows."""

    flags: Flags
    widths: tuple[int, ...]
    borders: bool = False

    def width_for(self, rows: int) -> int:
        """Return the smallest batch width for `rows` tokens."""
        return next(width for width in self.widths if width >= rows)

    def max_rows(self, length: int) -> int:
        """Return the largest verify batch after `length` tokens that attends to a single-token step's padded cache."""
        if not self.borders:
            return self.widths[-1]
        base = self.widths[0]
        border = -(-(length + base) // PADDED_TOKENS) * PADDED_TOKENS
        fitting = (n for n in range(self.widths[-1], 1, -1) if length + max(self.width_for(n), n - 1 + base) <= border)
        return next(fitting, 1)

    @property
    def max_filler(self) -> int:
        """Maximum number of filler rows in a batch."""
        return max(self.width_for(rows) - rows for rows in range(1, self.widths[-1] + 1))

    def with_kv(self, kv: str) -> "DecodeMode":
        """Return the mode with the KV cache types of an option `kv`."""
        return replace(self, flags=self.flags.with_kv(kv))

    def limit_width(self, rows: int) -> "DecodeMode":
        """Return the mode without batches wider than `rows`."""
        return replace(self, widths=tuple(width for width in self.widths if width <= rows))


# Used without a measurement: at least two rows, and one kernel path for all widths.
DEFAULT = DecodeMode(NOT_REPACKED, tuple(range(2, MAX_WIDTH + 1)))
UNMODIFIED = DecodeMode(RAW, tuple(range(1, MAX_WIDTH + 1)))  # rows of different widths differ
# Assumed when memory on a GPU is planned: without flash attention, which takes less.
PLANNED_ON_GPU = DecodeMode(ON_GPU[0], tuple(range(2, 9)))
