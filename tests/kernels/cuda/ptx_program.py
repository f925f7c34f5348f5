"""Executes one program of a kernel in PTX: all threads in lockstep, registers as numpy arrays with a value per thread.

This checks layouts, inline assembly, shared memory and matrix instructions as compiled, which Triton's interpreter
cannot. It implements the instructions of this package's kernels, executes asynchronous copies immediately, and expects
uniform branches. Slow: some seconds for a block of a small matrix.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tests.kernels.cuda.ptx_arithmetic import Array, arithmetic, as_register, as_type, integers, scaled_product
from tests.kernels.cuda.ptx_memory import SharedView

OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+")
_TYPES = {
    "b8": np.uint8, "u8": np.uint8, "s8": np.int8, "b16": np.uint16, "u16": np.uint16, "s16": np.int16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "b64": np.uint64, "u64": np.uint64, "s64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
GLOBAL = 1 << 40  # addresses of global memory start here; those of shared memory at zero
_ALL = 2**64 - 1
_ROUND: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rmi": np.floor, "rpi": np.ceil, "rzi": np.trunc}
_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def _literal(text: str) -> int:
    return int(text[2:], 16) if text.startswith(("0f", "0d")) else int(text.rstrip("U"), 0)


@dataclass
class Code:
    """A kernel's instructions (name, predicate, negated, operands), number of threads and bytes of shared memory."""

    threads: int
    shared: int
    statements: list[tuple[str, str | None, bool, list[str]]] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


class Program:
    """One program: its registers, its shared memory, and its view of global memory."""

    def __init__(
        self, code: Code, parameters: list[int], place: Sequence[int], grid: Sequence[int], view: SharedView
    ) -> None:
        self.code, self.parameters, self.threads, self.view = code, parameters, code.threads, view
        self.shared = np.full(code.shared, 0xFF, np.uint8)  # not-a-number, whatever the type
        lanes = np.arange(self.threads, dtype=np.uint64)
        self.registers: dict[str, Array] = {"%tid.x": lanes, "global_smem": lanes * 0}
        for axis, index, size in zip("xyz", place, grid, strict=True):
            self.registers[f"%ctaid.{axis}"] = lanes * 0 + np.uint64(index)
            self.registers[f"%nctaid.{axis}"] = lanes * 0 + np.uint64(size)

    def run(self) -> Iterator[None]:
        """Run to the end; stops before every access to global memory."""
        at = 0
        while at < len(self.code.statements):
            name, predicate, negate, operands = self.code.statements[at]
            at += 1
            active = np.ones(self.threads, bool)
            if predicate is not None:
                active = self.registers[predicate] ^ negate
            if name == "ret":
                return
            if name.startswith("bra"):
                assert active.all() or not active.any(), "a branch that threads take differently"
                at = self.code.labels[operands[0]] if active.any() else at
                continue
            if "global" in name:
                yield
            self._execute(name, operands, active)

    def _read(self, text: str) -> Array:
        if text in self.registers:
            return self.registers[text]
        if text.startswith("%"):  # undefined: the compiler never uses it
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

    def _load(self, address: Array, kind: type, active: Array) -> Array:
        """Load values at addresses; zero where not active."""
        size = np.dtype(kind).itemsize
        out = np.zeros((len(address), size), np.uint8)
        if active.any():
            at, is_global = self._places(address[active], size)
            out[active] = self.view.load(at, np.flatnonzero(active)) if is_global else self.shared[at]
        return out.view(kind)[:, 0]

    def _store(self, address: Array, value: Array, active: Array) -> None:
        if not active.any():
            return
        at, is_global = self._places(address[active], value.dtype.itemsize)
        written = value[active].view(np.uint8).reshape(at.shape)
        if is_global:
            self.view.store(at, written, np.flatnonzero(active))
        else:
            self.shared[at] = written

    def _places(self, address: Array, size: int) -> tuple[Array, bool]:
        """Return the addresses of the bytes of each value, int64 [n, size], and whether they are in global memory."""
        is_global = int(address.max()) >= GLOBAL
        first = (address - np.uint64(GLOBAL if is_global else 0)).astype(np.int64)
        assert first.min() >= 0
        assert first.max() + size <= len(self.view.memory if is_global else self.shared), "outside of memory"
        return first[:, None] + np.arange(size), is_global

    # ---- instructions

    def _execute(self, name: str, operands: list[str], active: Array) -> None:
        parts = name.split(".")
        head = parts[0]
        if head in {"createpolicy", "griddepcontrol"} or name.startswith(("cp.async.commit", "cp.async.wait")):
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
            half, integer = (np.float16, np.uint32) if parts[-1] == "f16x2" else (np.float32, np.uint64)
            values = [as_type(self._read(x), integer).view(half).astype(np.float64) for x in sources]
            result = arithmetic(head, values).astype(half).view(integer)
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
            pieces = [self._read(x) for x in OPERAND.findall(source[1:-1])]
            width = np.uint64(size // len(pieces))
            mask = np.uint64(2 ** int(width) - 1)
            value = sum(((x & mask) << np.uint64(i) * width for i, x in enumerate(pieces)), np.zeros_like(pieces[0]))
            self._write(target, value, active)
        elif target.startswith("{"):
            names = OPERAND.findall(target[1:-1])
            width = np.uint64(size // len(names))
            for i, register in enumerate(names):
                value = (self._read(source) >> np.uint64(i) * width) & np.uint64(2 ** int(width) - 1)
                self._write(register, value, active)
        else:
            self._write(target, self._read(source), active)

    def _ld(self, parts: list[str], operands: list[str], active: Array) -> None:
        kind = _TYPES[parts[-1]]
        targets = OPERAND.findall(operands[0].strip("{}"))
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
        for i, register in enumerate(OPERAND.findall(operands[1].strip("{}"))):
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

    def _bar(self, parts: list[str], operands: list[str], active: Array) -> None:
        self.view.barrier()

    def _fence(self, parts: list[str], operands: list[str], active: Array) -> None:
        if parts[1] == "proxy":  # asynchronous accesses are executed immediately
            return
        assert {"acq_rel", "sc"}.intersection(parts), f"unknown: {'.'.join(parts)}"
        self.view.release(active)
        self.view.acquire(active)

    def _atom(self, parts: list[str], operands: list[str], active: Array) -> None:
        kind = _TYPES[parts[-1]]
        address, value = self._address(operands[1]), as_type(self._read(operands[2]), kind)
        function = {"add": np.add, "max": np.maximum, "min": np.minimum, "or": np.bitwise_or}.get(parts[-2])
        assert function is not None or parts[-2] == "exch"
        if {"release", "acq_rel"}.intersection(parts):
            self.view.release(active)
        old = np.zeros(self.threads, kind)
        for thread in np.flatnonzero(active):
            (at,), is_global = self._places(address[thread : thread + 1], np.dtype(kind).itemsize)
            assert is_global, "atomic instructions on shared memory are not known"
            old[thread] = self.view.memory[at].view(kind)[0]
            new = value[thread] if function is None else function(old[thread], value[thread])
            self.view.exchange(at, np.array([new], kind).view(np.uint8))
        if {"acquire", "acq_rel"}.intersection(parts):
            self.view.acquire(active)
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
        assert parts[2] in {"bfly", "idx", "up"}
        if parts[2] == "up":  # the first lanes of a warp keep their own
            lanes = lanes - np.where(lanes % 32 >= other, other, 0)
        else:
            lanes = lanes ^ other if parts[2] == "bfly" else lanes // 32 * 32 + other
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
        targets = OPERAND.findall(operands[0].strip("{}"))
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
        for i, register in enumerate(OPERAND.findall(operands[1].strip("{}"))):
            rows = address[:, 8 * i : 8 * i + 8].reshape(-1)
            pairs = as_type(self._read(register), np.uint32).view(np.uint16).reshape(-1, 8, 8)
            matrix = (pairs.transpose(0, 2, 1) if "trans" in parts else pairs).reshape(-1, 8)
            for c in range(8):
                self._store(rows + np.uint64(2 * c), np.ascontiguousarray(matrix[:, c]), np.ones(len(rows), bool))

    def _mma(self, parts: list[str], operands: list[str], active: Array) -> None:
        d, a, b, c = (OPERAND.findall(group.strip("{}")) for group in operands[:4])
        left, right = ([as_type(self._read(x), np.uint32) for x in group] for group in (a, b))
        if "block_scale" in parts:
            assert parts[3] == "m16n8k64", f"unknown: {'.'.join(parts)}"
            assert operands[5] == operands[7] == "{ 0, 0 }", "scales of other bytes and threads"
            scales = [as_type(self._read(x), np.uint32) for x in operands[4:8:2]]
            product = scaled_product(parts, left, right, *scales)
        else:
            assert parts[3] == "m16n8k16", f"unknown: {'.'.join(parts)}"
            assert parts[-2] == "f16", f"unknown: {'.'.join(parts)}"
            product = self._half_product(left, right)
        for i, register in enumerate(d):
            own = product[:, (i // 2) * 8 : (i // 2) * 8 + 8].reshape(-1, 8, 4, 2)[..., i % 2].reshape(-1)
            value: Array = (as_type(self._read(c[i]), np.float32).astype(np.float64) + own).astype(np.float32)
            self._write(register, as_register(value), active)

    def _wgmma(self, parts: list[str], operands: list[str], active: Array) -> None:
        """Add a warpgroup's product to d: `a` in registers or in shared memory, `b` in shared memory."""
        if parts[1] != "mma_async":  # fence, commit_group, wait_group
            return
        shape = re.fullmatch(r"m64n(\d+)k16", parts[4])
        assert shape, f"unknown: {'.'.join(parts)}"
        assert parts[5:] == ["f32", "f16", "f16"], f"unknown: {'.'.join(parts)}"
        columns, d = int(shape.group(1)), OPERAND.findall(operands[0].strip("{}"))
        groups = range(0, self.threads, 128)
        right = np.stack([self._matrix(operands[2], group, columns, operands[-1] == "1") for group in groups])
        if operands[1].startswith("{"):
            registers = [as_type(self._read(x), np.uint32) for x in OPERAND.findall(operands[1].strip("{}"))]
            a0, a1, a2, a3 = (x.view(np.float16).reshape(len(groups), 4, 8, 8) for x in registers)
            left = np.concatenate([np.concatenate([a0, a2], 3), np.concatenate([a1, a3], 3)], 2).reshape(-1, 64, 16)
        else:
            left = np.stack([self._matrix(operands[1], group, 64, operands[-2] == "1") for group in groups])
        product = left.astype(np.float64) @ right.astype(np.float64).transpose(0, 2, 1)  # [groups, 64, columns]
        parts_of_d = product.reshape(len(groups), 4, 2, 8, columns // 8, 4, 2)  # warp, half, row, block, pair, column
        for i, register in enumerate(d):
            own = parts_of_d[:, :, i // 2 % 2, :, i // 4, :, i % 2].reshape(-1)
            old = np.where(self._read(operands[3]).astype(bool), as_type(self._read(register), np.float32), 0)
            self._write(register, as_register((old.astype(np.float64) + own).astype(np.float32)), active)

    def _matrix(self, descriptor: str, thread: int, rows: int, transposed: bool) -> Array:
        """Read float16 [rows, 16] in swizzled atoms from shared memory: rows of k, or columns of k if `transposed`."""
        word = int(self._read(descriptor)[thread])
        start, stride, swizzle = (word & 0x3FFF) << 4, ((word >> 32) & 0x3FFF) << 4, word >> 62
        assert swizzle, "a layout without swizzle"
        width = 256 >> swizzle  # bytes of a row of an atom, which has eight
        n, k = np.meshgrid(np.arange(rows), np.arange(16), indexing="ij")
        along, across = (n, k) if transposed else (k, n)
        assert (along.max() + 1) * 2 <= width, "several atoms side by side"
        at = start + across // 8 * stride + across % 8 * width + along * 2
        at ^= (at >> 3) & (0x70 & (width - 16))
        return np.ascontiguousarray(self.shared[at[..., None] + np.arange(2)]).view(np.float16)[..., 0]

    def _half_product(self, a: list[Array], b: list[Array]) -> Array:
        """The product float64 [warps, 16, 8] of registers with two float16 each."""
        a0, a1, a2, a3, b0, b1 = (x.view(np.float16).reshape(self.threads // 32, 8, -1) for x in (*a, *b))
        left = np.concatenate([np.concatenate([a0, a2], 2), np.concatenate([a1, a3], 2)], 1)
        right = np.concatenate([b0, b1], 2)
        product: Array = left.astype(np.float64) @ right.astype(np.float64).transpose(0, 2, 1)
        return product
