"""Runs compiled kernels without a GPU: interprets a kernel's PTX, all threads of a block in step, with numpy.

What Triton's interpreter cannot check is checked here: layouts, inline assembly, shared memory and matrix instructions
as they were compiled. It knows the instructions that the kernels of this package use, takes asynchronous copies as
done at once, and expects branches that all threads take alike. Slow: some seconds for a block of a small matrix.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tests.kernels.ptx_arithmetic import Array, arithmetic, as_register, as_type, integers

_STATEMENT = re.compile(r"^\s*(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*?);", re.S)
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_TYPES = {
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16, "s16": np.int16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
_GLOBAL = 1 << 40  # addresses of global memory start here; those of shared memory at zero
_ALL = 2**64 - 1
_ROUND: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _literal(text: str) -> int:
    return int(text[2:], 16) if text.startswith(("0f", "0d")) else int(text.rstrip("U"), 0)


class Machine:
    """One kernel as PTX; `launch` runs its grid on torch tensors, in place."""

    def __init__(self, ptx: str, threads: int, shared: int) -> None:
        body = ptx[ptx.index("\n{", ptx.index(".entry")) + 2 :]
        body = body.split(".section")[0]
        body = re.sub(r"//[^\n]*|/\*.*?\*/", "", body, flags=re.S)
        body = re.sub(r"^\s*\.(?:loc|file|reg|pragma)[^\n]*$", "", body, flags=re.M)
        self.kinds = re.findall(r"\.param \.(\w+) ", ptx[: ptx.index("\n{", ptx.index(".entry"))])
        self.threads, self.shared_bytes = threads, shared
        self.code: list[tuple[str, str | None, bool, list[str]]] = []
        self.labels: dict[str, int] = {}
        for piece in re.split(r"(?<=;)|(?<=:)\s*\n|[{}]\s*\n", body):
            if label := re.match(r"\s*(\$\w+):?\s*$", piece.strip().rstrip(":")):
                self.labels[label.group(1)] = len(self.code)
            elif statement := _STATEMENT.match(piece):
                negate, predicate, name, operands = statement.groups()
                self.code.append((name, predicate, negate == "!", _OPERAND.findall(operands)))

    def launch(self, grid: Sequence[int], arguments: Sequence[Any]) -> None:
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
                whole = torch.empty(0, dtype=torch.uint8).set_(storage)
                memory += bytes((storage.data_ptr() - len(memory)) % 256)  # the compiler saw that alignment
                storages[storage.data_ptr()] = whole, len(memory)
                memory += whole.numpy().tobytes()
            values.append(_GLOBAL + storages[storage.data_ptr()][1] + argument.data_ptr() - storage.data_ptr())
        self.memory = np.frombuffer(memory, np.uint8)
        self.parameters = [
            int(np.float32(value).view(np.uint32)) if kind == "f32" else int(value) & _ALL
            for kind, value in zip(self.kinds, [*values, _GLOBAL, _GLOBAL], strict=True)  # two of Triton's own
        ]
        sizes = (*grid, 1, 1)[:3]
        for z, y, x in np.ndindex(sizes[::-1]):
            self._run((x, y, z), sizes)
        for whole, start in storages.values():
            whole.copy_(torch.from_numpy(self.memory[start : start + whole.numel()].copy()))

    # ---- one program

    def _run(self, program: Sequence[int], grid: Sequence[int]) -> None:
        self.shared = np.full(self.shared_bytes, 0xFF, np.uint8)  # not-a-number, whatever the type
        lanes = np.arange(self.threads, dtype=np.uint64)
        self.registers: dict[str, Array] = {"%tid.x": lanes, "global_smem": lanes * 0}
        for axis, index, size in zip("xyz", program, grid, strict=True):
            self.registers[f"%ctaid.{axis}"] = lanes * 0 + np.uint64(index)
            self.registers[f"%nctaid.{axis}"] = lanes * 0 + np.uint64(size)
        at = 0
        while at < len(self.code):
            name, predicate, negate, operands = self.code[at]
            at += 1
            active = np.ones(self.threads, bool)
            if predicate is not None:
                active = self.registers[predicate] ^ negate
            if name == "ret":
                return
            if name.startswith("bra"):
                assert active.all() or not active.any(), "a branch that threads take differently"
                at = self.labels[operands[0]] if active.any() else at
            else:
                self._execute(name, operands, active)

    def _read(self, text: str) -> Array:
        if text in self.registers:
            return self.registers[text]
        if text.startswith("%"):  # undefined: the compiler knows that it does not matter
            return np.full(self.threads, 2**64 - 1, np.uint64)
        return np.full(self.threads, _literal(text) & _ALL, np.uint64)

    def _write(self, text: str, value: Array, active: Array) -> None:
        if text == "_":
            return
        old = self.registers.get(text)
        self.registers[text] = value if old is None or active.all() else np.where(active, value, old)

    def _address(self, text: str) -> Array:
        base, _, offset = text.strip("[] ").partition("+")
        return self._read(base.strip()) + np.uint64(_literal(offset.strip() or "0") & _ALL)

    def _pool(self, address: Array) -> tuple[Array, Array]:
        if int(address.max()) >= _GLOBAL:
            return self.memory, (address - np.uint64(_GLOBAL)).astype(np.int64)
        return self.shared, address.astype(np.int64)

    def _load(self, address: Array, kind: type, active: Array) -> Array:
        """Values at addresses; zero where not active."""
        size = np.dtype(kind).itemsize
        out = np.zeros((len(address), size), np.uint8)
        if active.any():
            pool, at = self._pool(address[active])
            assert at.min() >= 0
            assert at.max() + size <= len(pool), "outside of memory"
            out[active] = pool[at[:, None] + np.arange(size)]
        return out.view(kind)[:, 0]

    def _store(self, address: Array, value: Array, active: Array) -> None:
        if not active.any():
            return
        pool, at = self._pool(address[active])
        assert at.max() + value.dtype.itemsize <= len(pool), "outside of memory"
        pool[at[:, None] + np.arange(value.dtype.itemsize)] = value[active].view(np.uint8).reshape(len(at), -1)

    # ---- instructions

    def _execute(self, name: str, operands: list[str], active: Array) -> None:
        parts = name.split(".")
        head = parts[0]
        if head in {"bar", "createpolicy", "griddepcontrol"} or name.startswith(("cp.async.commit", "cp.async.wait")):
            return
        if special := getattr(self, f"_{head}", None):
            special(parts, operands, active)
            return
        target, *sources = operands
        kind = _TYPES.get(parts[-1], np.uint32)
        if parts[-1] == "pred":
            logic = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not}
            self._write(target, logic[head](*(self._read(x).astype(bool) for x in sources)), active)
            return
        if parts[-1] in {"f16x2", "f32x2"}:
            half, whole = (np.float16, np.uint32) if parts[-1] == "f16x2" else (np.float32, np.uint64)
            values = [as_type(self._read(x), whole).view(half).astype(np.float64) for x in sources]
            result = arithmetic(head, values).astype(half).view(whole)
        elif parts[-2:] == ["f32", "f16"]:  # mixed: only the last operand is as wide as the result
            narrow = [as_type(self._read(x), np.float16).astype(np.float64) for x in sources[:-1]]
            last = as_type(self._read(sources[-1]), np.float32).astype(np.float64)
            result = arithmetic(head, [*narrow, last]).astype(np.float32)
        elif parts[-1] in {"f16", "f32"}:
            values = [as_type(self._read(x), kind).astype(np.float64) for x in sources]
            result = arithmetic(head, values).astype(kind)
        else:
            values = [self._read(x) for x in sources]
            result = integers(head, parts, kind, values)
        self._write(target, as_register(result), active)

    def _mov(self, parts: list[str], operands: list[str], active: Array) -> None:
        target, source = operands
        if parts[-1] == "pred":
            self._write(target, self._read(source).astype(bool), active)
            return
        size = 8 * np.dtype(_TYPES[parts[-1]]).itemsize
        if source.startswith("{"):
            pieces = [self._read(x) for x in _OPERAND.findall(source[1:-1])]
            width = np.uint64(size // len(pieces))
            mask = np.uint64(2 ** int(width) - 1)
            value = sum(((x & mask) << np.uint64(i) * width for i, x in enumerate(pieces)), np.zeros_like(pieces[0]))
            self._write(target, value, active)
        elif target.startswith("{"):
            names = _OPERAND.findall(target[1:-1])
            width = np.uint64(size // len(names))
            for i, register in enumerate(names):
                value = (self._read(source) >> np.uint64(i) * width) & np.uint64(2 ** int(width) - 1)
                self._write(register, value, active)
        else:
            self._write(target, self._read(source), active)

    def _ld(self, parts: list[str], operands: list[str], active: Array) -> None:
        kind = _TYPES[parts[-1]]
        targets = _OPERAND.findall(operands[0].strip("{}"))
        if parts[1] == "param":
            value = np.full(self.threads, self.parameters[int(operands[1].strip("[]").rsplit("_", 1)[1])], np.uint64)
            self._write(targets[0], value, active)
            return
        address = self._address(operands[1])
        for i, register in enumerate(targets):
            value = self._load(address + np.uint64(i * np.dtype(kind).itemsize), kind, active)
            self._write(register, as_register(value), active)

    def _st(self, parts: list[str], operands: list[str], active: Array) -> None:
        kind = _TYPES[parts[-1]]
        address = self._address(operands[0])
        for i, register in enumerate(_OPERAND.findall(operands[1].strip("{}"))):
            self._store(address + np.uint64(i * np.dtype(kind).itemsize), as_type(self._read(register), kind), active)

    def _cp(self, parts: list[str], operands: list[str], active: Array) -> None:
        to, source, size, *rest = operands
        present = (
            active & (as_type(self._read(rest[0]), np.uint32) > 0) if rest and re.match(r"%r\d", rest[0]) else active
        )
        to_at, from_at = self._address(to), self._address(source)
        for i in range(0, _literal(size), 4):
            value = self._load(from_at + np.uint64(i), np.uint32, present)
            self._store(to_at + np.uint64(i), value, active)

    def _atom(self, parts: list[str], operands: list[str], active: Array) -> None:
        kind = _TYPES[parts[-1]]
        address, value = self._address(operands[1]), as_type(self._read(operands[2]), kind)
        function = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or}.get(parts[-2])
        assert function is not None or parts[-2] == "exch"
        old = np.zeros(self.threads, kind)
        for thread in np.flatnonzero(active):
            one = np.arange(self.threads) == thread
            old[thread] = self._load(address, kind, one)[thread]
            self._store(address, value if function is None else function(old, value), one)
        self._write(operands[0], as_register(old), active)

    def _setp(self, parts: list[str], operands: list[str], active: Array) -> None:
        left, right = (as_type(self._read(x), _TYPES[parts[-1]]) for x in operands[1:3])
        unordered = np.isnan(left) | np.isnan(right) if parts[-1].startswith("f") else np.zeros(self.threads, bool)
        if parts[1] in {"num", "nan"}:
            result = unordered if parts[1] == "nan" else ~unordered
        elif parts[1] in _COMPARE:
            result = _COMPARE[parts[1]](left, right) & ~unordered
        else:
            result = _COMPARE[parts[1][:-1]](left, right) | unordered
        for combine, function in (("and", np.logical_and), ("or", np.logical_or)):
            if combine in parts:
                result = function(result, self.registers[operands[3]])
        self._write(operands[0], result, active)

    def _selp(self, parts: list[str], operands: list[str], active: Array) -> None:
        value = np.where(self.registers[operands[3]], self._read(operands[1]), self._read(operands[2]))
        self._write(operands[0], value, active)

    def _shfl(self, parts: list[str], operands: list[str], active: Array) -> None:
        lanes, other = np.arange(self.threads), self._read(operands[2]).astype(np.int64)
        lanes = lanes ^ other if parts[2] == "bfly" else lanes // 32 * 32 + other
        assert parts[2] in {"bfly", "idx"}
        self._write(operands[0].partition("|")[0], self._read(operands[1])[lanes], active)

    def _redux(self, parts: list[str], operands: list[str], active: Array) -> None:
        function = {"add": np.add, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or, "and": np.bitwise_and}
        warps = as_type(self._read(operands[1]), _TYPES[parts[-1]]).reshape(-1, 32)
        value = function[parts[2]].reduce(warps, 1).astype(warps.dtype).repeat(32)
        self._write(operands[0], as_register(value), active)

    def _cvt(self, parts: list[str], operands: list[str], active: Array) -> None:
        to = parts[-2]
        if to == "f16x2" and parts[-1] == "f32":  # the first operand goes to the upper half
            high, low = (as_type(self._read(x), np.float32).astype(np.float16) for x in operands[1:])
            value: Array = np.stack([low, high], 1).copy().view(np.uint32)[:, 0]
        elif to == "e4m3x2":  # the same, of bytes
            pair = [as_type(self._read(x), np.float32) for x in reversed(operands[1:])]
            codes = torch.from_numpy(np.stack(pair, 1)).clamp(-448, 448).to(torch.float8_e4m3fn)
            value = codes.view(torch.uint8).numpy().view(np.uint16)[:, 0]
        elif parts[-1] == "e4m3x2":
            codes = torch.from_numpy(as_type(self._read(operands[1]), np.uint16).copy()).view(torch.float8_e4m3fn)
            value = codes.half().numpy().view(np.uint32)
        else:
            value = as_type(self._read(operands[1]), _TYPES[parts[-1]])
            rounded = next((_ROUND[part](value) for part in parts if part in _ROUND), value)
            with np.errstate(invalid="ignore"):
                value = rounded.astype(_TYPES[to])
        self._write(operands[0], as_register(value), active)

    def _ldmatrix(self, parts: list[str], operands: list[str], active: Array) -> None:
        targets = _OPERAND.findall(operands[0].strip("{}"))
        address = self._address(operands[1]).reshape(-1, 32)
        for i, register in enumerate(targets):
            rows = address[:, 8 * i : 8 * i + 8].reshape(-1)
            every = np.ones(len(rows), bool)
            loaded = [self._load(rows + np.uint64(2 * c), np.uint16, every) for c in range(8)]
            matrix = np.stack(loaded, 1).reshape(-1, 8, 8)
            matrix = matrix.transpose(0, 2, 1) if "trans" in parts else matrix
            value = np.ascontiguousarray(matrix).view(np.uint32).reshape(-1)  # lane: row lane / 4, pair lane % 4
            self._write(register, as_register(value), active)

    def _stmatrix(self, parts: list[str], operands: list[str], active: Array) -> None:
        address = self._address(operands[0]).reshape(-1, 32)
        for i, register in enumerate(_OPERAND.findall(operands[1].strip("{}"))):
            rows = address[:, 8 * i : 8 * i + 8].reshape(-1)
            pairs = as_type(self._read(register), np.uint32).view(np.uint16).reshape(-1, 8, 8)
            matrix = (pairs.transpose(0, 2, 1) if "trans" in parts else pairs).reshape(-1, 8)
            for c in range(8):
                self._store(rows + np.uint64(2 * c), np.ascontiguousarray(matrix[:, c]), np.ones(len(rows), bool))

    def _mma(self, parts: list[str], operands: list[str], active: Array) -> None:
        assert parts[3] == "m16n8k16", f"unknown: {'.'.join(parts)}"
        assert parts[-2] == "f16", f"unknown: {'.'.join(parts)}"
        d, a, b, c = (_OPERAND.findall(group.strip("{}")) for group in operands)
        flat: list[Array] = [
            as_type(self._read(x), np.uint32).view(np.float16).reshape(self.threads // 32, 8, -1) for x in (*a, *b)
        ]
        left = np.concatenate([np.concatenate([flat[0], flat[2]], 2), np.concatenate([flat[1], flat[3]], 2)], 1)
        right = np.concatenate([flat[4], flat[5]], 2)
        product: Array = left.astype(np.float64) @ right.astype(np.float64).transpose(0, 2, 1)  # [warps, 16, 8]
        for i, register in enumerate(d):
            own = product[:, (i // 2) * 8 : (i // 2) * 8 + 8].reshape(-1, 8, 4, 2)[..., i % 2].reshape(-1)
            value: Array = (as_type(self._read(c[i]), np.float32).astype(np.float64) + own).astype(np.float32)
            self._write(register, as_register(value), active)
