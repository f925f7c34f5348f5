"""Names of backends and row modes in settings and options. Imports nothing heavy: every start reads it."""

from typing import Literal, get_args

Runner = Literal["cpu", "cuda", "llama.cpp", "torch"]
Backend = Literal["auto", Runner]
RowsMode = Literal["auto", "exact", "fast"]

RUNNERS: tuple[Runner, ...] = get_args(Runner)
ROWS_MODES: tuple[RowsMode, ...] = get_args(RowsMode)
BACKENDS: tuple[Backend, ...] = ("auto", *RUNNERS)
CHECKING_GPU = "checking"  # status of the CUDA engine with a pair that another backend runs until then
PLANNED: tuple[Backend, ...] = tuple(name for name in BACKENDS if name != "torch")  # backends that plan memory
