"""Names of backends and row modes in settings and options. Every start imports this module, so it stays small."""

from typing import Literal, get_args

Runner = Literal["cpu", "cuda", "llama.cpp", "torch"]
Backend = Literal["auto", Runner]
RowsMode = Literal["auto", "exact", "fast"]

RUNNERS: tuple[Runner, ...] = get_args(Runner)
ROWS_MODES: tuple[RowsMode, ...] = get_args(RowsMode)
BACKENDS: tuple[Backend, ...] = ("auto", *RUNNERS)
CHECKING_GPU = "checking"  # status of the CUDA engine while it is checked and another backend runs the pair
PLANNED: tuple[Backend, ...] = tuple(name for name in BACKENDS if name != "torch")  # backends that plan memory
