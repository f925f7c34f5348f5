"""The backends, by the names that users give. Imports nothing, for the command line reads it at every start."""

from typing import Literal, get_args

Runner = Literal["cpu", "cuda", "llama.cpp", "torch"]
Backend = Literal["auto", Runner]

RUNNERS: tuple[Runner, ...] = get_args(Runner)
BACKENDS: tuple[Backend, ...] = ("auto", *RUNNERS)
PLANNED: tuple[Backend, ...] = tuple(name for name in BACKENDS if name != "torch")  # the reference plans nothing
