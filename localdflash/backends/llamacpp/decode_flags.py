"""A way to run a target: the flags of llama.cpp that decide a row's bits, and how many rows its decodes have.

In llama.cpp a row's bits depend on how many rows stand beside it: other kernels run for one row, for groups of four,
from eight on. Widths whose rows agree to the bit are a class; a loaded pair stays in one. Its decodes have a width of
the class, filled up by rows that are dropped at once; so greedy text is that of plain decoding in the same class, for
any draft, any cut of the prompt and any reuse of the cache. Which widths are a class is measured (see `classes`).
"""

from dataclasses import dataclass, replace

import llama_cpp.llama_cpp as api

MOST = 32  # rows of a decode
MOST_WITH_STATES = 16  # of a model with recurrent layers: llama.cpp keeps their states, which are large, after each row
BORDER = 256  # tokens by which the part of the cache that is attended to grows
TYPES = {"f32": api.GGML_TYPE_F32, "f16": api.GGML_TYPE_F16, "bf16": 30}  # ggml_type


@dataclass(frozen=True)
class Flags:
    """What is set for a model and its context. The defaults are llama.cpp's own on a processor.

    Keys and values of two types keep flash attention on a processor to one path for all rows: with one type a lone row
    is split among threads from 512 tokens on, and many rows are computed in tiles.
    """

    repack: bool = True  # weights in the order of the processor's kernels
    flash: bool = True
    keys: str = "f16"
    values: str = "f16"

    def apply(self, params: object) -> None:
        """Set a context's parameters."""
        params.flash_attn_type = int(self.flash)  # type: ignore[attr-defined]  # ctypes
        params.type_k, params.type_v = TYPES[self.keys], TYPES[self.values]  # type: ignore[attr-defined]


RAW = Flags()
ONE_PATH = Flags(values="bf16")
NOT_REPACKED = Flags(repack=False, values="bf16")
ON_PROCESSOR, ON_GPU = (ONE_PATH, NOT_REPACKED), (Flags(flash=False), RAW)  # to be tried, in this order


@dataclass(frozen=True)
class Way:
    """`widths` ascend; the first is that of plain decoding. With `borders`, bits change where the cache grows."""

    flags: Flags
    widths: tuple[int, ...]
    borders: bool = False

    def width(self, rows: int) -> int:
        """The width of a decode that carries so many rows."""
        return next(width for width in self.widths if width >= rows)

    def most(self, length: int) -> int:
        """The most rows that a decode may carry after so many tokens.

        Each row must see the padded length that its plain step sees, whose filler rows end elsewhere.
        """
        if not self.borders:
            return self.widths[-1]
        plain = self.widths[0]
        border = -(-(length + plain) // BORDER) * BORDER
        fitting = (n for n in range(self.widths[-1], 1, -1) if length + max(self.width(n), n - 1 + plain) <= border)
        return next(fitting, 1)

    @property
    def filler(self) -> int:
        """The most rows that a decode is filled up by."""
        return max(self.width(rows) - rows for rows in range(1, self.widths[-1] + 1))

    def takes_back(self, drafts: bool) -> int:
        """The most rows of a decode that are dropped again: of a draft all but the first, else fillers."""
        return self.widths[-1] - 1 if drafts else self.filler

    def up_to(self, rows: int) -> "Way":
        """The way without wider decodes."""
        return replace(self, widths=tuple(width for width in self.widths if width <= rows))


DEFAULT = Way(
    NOT_REPACKED, tuple(range(2, MOST + 1))
)  # without a measurement: one row beside another, and one path for all
AS_IT_COMES = Way(RAW, tuple(range(1, MOST + 1)))  # no class: rows of different widths differ
PLANNED_ON_GPU = Way(ON_GPU[0], tuple(range(2, 9)))  # flash attention would take less memory
