"""Runs compiled kernels without a GPU: interprets a kernel's PTX with numpy, see `ptx_program`.

Programs run one after the other. With `chance` they start in random order, are interleaved at accesses to global
memory, and see only what the memory model guarantees: see `ptx_memory`.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.kernels.cuda.ptx_arithmetic import Array
from tests.kernels.cuda.ptx_memory import SharedView, some_view
from tests.kernels.cuda.ptx_program import GLOBAL, OPERAND, Code, Program

_STATEMENT = re.compile(r"^\s*(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);", re.S)
_ALL = 2**64 - 1
RESIDENT = 6  # programs that run at a time


class Machine:
    """One kernel as PTX; `launch` runs its grid on torch tensors, in place."""

    def __init__(self, ptx: str, threads: int, shared: int) -> None:
        body = ptx[ptx.index("\n{", ptx.index(".entry")) + 2 :]
        body = body.split(".section")[0]
        body = re.sub(r"//[^\n]*|/\*.*?\*/", "", body, flags=re.S)
        body = re.sub(r"^\s*\.(?:loc|file|reg|pragma)[^\n]*$", "", body, flags=re.M)
        self.kinds = re.findall(r"\.param \.(\w+) ", ptx[: ptx.index("\n{", ptx.index(".entry"))])
        self.code = Code(threads, shared)
        for piece in re.split(r"(?<=;)|(?<=:)\s*\n|[{}]\s*\n", body):
            if label := re.match(r"\s*(\$\w+):?\s*$", piece.strip().rstrip(":")):
                self.code.labels[label.group(1)] = len(self.code.statements)
            elif statement := _STATEMENT.match(piece):
                negate, predicate, name, operands = statement.groups()
                self.code.statements.append((name, predicate, negate == "!", OPERAND.findall(operands)))

    def launch(self, grid: Sequence[int], arguments: Sequence[Any], chance: random.Random | None = None) -> None:
        """Run every program of a grid; tensors (a view shares its storage) and numbers, as the compiled kernel asks."""
        storages: dict[int, tuple[torch.Tensor, int]] = {}
        memory = bytearray()
        values: list[float] = []
        for argument in arguments:
            if not isinstance(argument, torch.Tensor):
                values.append(argument)
                continue
            storage = argument.untyped_storage()
            if storage.data_ptr() not in storages:
                storage_bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
                memory += bytes((storage.data_ptr() - len(memory)) % 256)  # the compiler saw that alignment
                storages[storage.data_ptr()] = storage_bytes, len(memory)
                memory += storage_bytes.numpy().tobytes()
            values.append(GLOBAL + storages[storage.data_ptr()][1] + argument.data_ptr() - storage.data_ptr())
        everything = np.frombuffer(memory, np.uint8)
        parameters = [
            int(np.float32(value).view(np.uint32)) if kind == "f32" else int(value) & _ALL
            for kind, value in zip(self.kinds, [*values, GLOBAL, GLOBAL], strict=True)  # two parameters of Triton
        ]
        sizes = (*grid, 1, 1)[:3]
        programs = [(x, y, z) for z, y, x in np.ndindex(sizes[::-1])]
        if chance:
            self._race(programs, sizes, parameters, everything, chance)
        else:
            for program in programs:
                for _ in Program(self.code, parameters, program, sizes, SharedView(everything)).run():
                    pass
        for storage_bytes, start in storages.values():
            storage_bytes.copy_(torch.from_numpy(everything[start : start + storage_bytes.numel()].copy()))

    def _race(
        self,
        programs: list[tuple[int, int, int]],
        sizes: Sequence[int],
        parameters: list[int],
        memory: Array,
        chance: random.Random,
    ) -> None:
        """Run all programs, a few at a time, each for a random while; unsynchronised stores become visible last."""
        chance.shuffle(programs)
        views, running = list[SharedView](), list[Iterator[None]]()
        while programs or running:
            while programs and len(running) < RESIDENT:
                views.append(some_view(memory, self.code.threads, chance))
                running.append(Program(self.code, parameters, programs.pop(), sizes, views[-1]).run())
            one = chance.choice(running)
            if all(next(one, True) is None for _ in range(chance.choice((1, 3, 30)))):
                continue
            running.remove(one)
        chance.shuffle(views)
        for view in views:
            view.end()
