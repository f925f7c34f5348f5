"""Operations with checks: each call is compared with its reference, or a row (token) of its results is recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_sizes import is_out_of_memory
from localdflash.backends.cuda.device import describe_error
from localdflash.backends.cuda.ops import REFERENCES, Op, Ops
from localdflash.backends.cuda.proof.calls import (
    Arguments,
    bind_arguments,
    copy_arguments,
    planes_in,
    run_reference,
    writable_tensors,
)
from localdflash.backends.cuda.stack import ROWS, Stack
from localdflash.backends.cuda.stepper import Stepper

# Tolerances relative to the largest value: float32 sums in another order, sums of float16 values, float16 values.
EXACT, SUMS, ROUNDED = 5e-5, 2e-3, 2e-3
MAX_CODE_STEP = {torch.int8: 1.01, torch.float8_e4m3fn: 32.5}  # between neighbouring codes of an 8-bit KV cache
MAX_DIFFERING_CODES = 0.03  # share of the codes that may be off by one, because values lie between two codes


class CheckError(Exception):
    """Failed check of an operation; `CallNames` names the operation."""

    def __init__(self, operation: str, failure: str) -> None:
        super().__init__(f"{operation}: {failure}")
        self.operation = operation


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaNs included."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def describe_difference(name: str, got: Tensor, want: Tensor) -> str:
    """Return how result `name` differs from the reference's by more than rounding; "" if it does not."""
    want = want.to(got.device)
    if got.dtype in MAX_CODE_STEP:
        return _describe_code_difference(got, want)
    if not got.is_floating_point():
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} of {got.numel()} integers differ"
    rounding = SUMS if "sums" in name else EXACT if got.dtype == torch.float32 else ROUNDED
    got, want = got.double(), want.double()
    alike = (got == want) | (got.isnan() & want.isnan())  # infinities, and NaNs of unused rows
    error = torch.where(alike, 0.0, (got - want).abs())
    if bool(error.isnan().any()):
        return f"{int(error.isnan().sum())} of {got.numel()} numbers are NaN"
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    part = float(error.max()) / max(largest, 1e-30)
    return f"off by {part:.1e} of the largest value" if part > rounding else ""


def _describe_code_difference(got: Tensor, want: Tensor) -> str:
    differing = float((got.view(torch.uint8) != want.view(torch.uint8)).float().mean())
    step = float((got.float() - want.float()).abs().nan_to_num(float("inf")).max())
    if differing > MAX_DIFFERING_CODES or step > MAX_CODE_STEP[got.dtype]:
        return f"{differing:.1%} of the codes differ, by up to {step:g}"
    return ""


Wrap = Callable[[str, Op], Op]  # operation by name -> operation to use
Watch = Callable[[str], None]  # called with the name of the next call
ROW_AXES = {"x": 0, "a": 0, "a_out": 0, "out": 0, "q_out": 0, "logits": 0, "choice": 0}
ROW_AXES |= {"sums": 1, "sums_out": 1, "squares": 1, "squares_out": 1}
BY_EXPERT = frozenset({"experts_gate_up", "experts_down"})  # operations whose rows are ordered by expert


def wrap_ops(ops: Ops, wrap: Wrap) -> Ops:
    """Return the operations, each replaced by the result of `wrap`."""
    return Ops(**{field.name: wrap(field.name, getattr(ops, field.name)) for field in fields(Ops)})


@contextmanager
def using_ops(stepper: Stepper, ops: Ops) -> Iterator[None]:
    """Return a context in which a pair uses another set of operations."""
    holders: list[Stepper | Stack] = [stepper, stepper.stack, *([stepper.drafter.stack] if stepper.drafter else [])]
    before = [holder.ops for holder in holders]
    for holder in holders:
        holder.ops = ops
    try:
        yield
    finally:
        for holder, own in zip(holders, before, strict=True):
            holder.ops = own


def report_launches(ops: Ops, watch: Watch) -> Ops:
    """Return operations that call `watch` before each launch and wait after it, so that an error names its launch."""

    def wrap(name: str, op: Op) -> Op:
        def run(*args: Any, **kwargs: Any) -> None:
            watch(name)
            op(*args, **kwargs)
            if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()

        return run

    return wrap_ops(ops, wrap)


class CallNames:
    """Names of calls with their layer. A call without a matrix gets the layer of the last call with a matrix."""

    def __init__(self, stepper: Stepper) -> None:
        self._of = {id(planes): name for name, weights in _weights(stepper) for planes in planes_in(weights)}
        self._last = ""

    def name(self, operation: str, arguments: Arguments) -> str:
        """Return the operation's name with its layer: "attention of layer 3"."""
        found = (self._of[id(planes)] for planes in planes_in(arguments) if id(planes) in self._of)
        self._last = next(found, self._last)
        return f"{operation} of {self._last}" if self._last else operation


def _weights(stepper: Stepper) -> Iterator[tuple[str, object]]:
    """Yield the parts of a pair by name; the target comes last, so that shared weights get the target's names."""
    drafter = stepper.drafter.weights if stepper.drafter else None
    for owner, weights in (("the drafter's ", drafter), ("", stepper.target)):
        if weights:
            yield f"{owner}output", weights.head
            yield f"{owner}embedding", weights.embedding
            yield from ((f"{owner}layer {index}", layer) for index, layer in enumerate(weights.layers))
    if drafter:
        yield "the drafter's context", (drafter.fuse, drafter.context)
        yield "the drafter's slots", drafter.chooser


def compare_with_references(stepper: Stepper, watch: Watch) -> Ops:
    """Return the pair's operations, each call compared with a second run and with the reference; see `CheckError`."""
    call_names = CallNames(stepper)

    def wrap(name: str, op: Op) -> Op:
        reference = getattr(REFERENCES, name)

        def run(*args: Any, **kwargs: Any) -> None:
            arguments = bind_arguments(reference, args, kwargs)
            call = call_names.name(name, arguments)
            watch(call)
            before = copy_arguments(arguments)
            got = _run_twice(call, op, arguments)
            if not any(planes.scaling == "product" for planes in planes_in(arguments)):  # FP4 has another arithmetic
                _compare(call, name, got, before, reference)

        return run

    return wrap_ops(stepper.ops, wrap)


def _run_twice(call: str, op: Op, arguments: Arguments) -> dict[str, Tensor]:
    """Return an operation's results after two runs; CheckError if their bits differ or the device reports an error."""
    twin = copy_arguments(arguments)
    try:
        op(**twin)
        op(**arguments)
        got, again = writable_tensors(arguments), writable_tensors(twin)
        differing = next((part for part, tensor in got.items() if not same_bits(tensor, again[part])), "")
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise CheckError(call, describe_error(error)) from error
    if differing:
        raise CheckError(call, f"two runs on the same numbers differ in {differing}")
    return got


def _compare(call: str, name: str, got: dict[str, Tensor], before: Arguments, reference: Op) -> None:
    if name == "head" and before.get("logits") is None:
        planes = before["planes"]
        before["logits"] = torch.zeros(ROWS, planes.n, device=planes.base.device)
    want = writable_tensors(run_reference(reference, before))
    if name == "head":
        _settle_ties(got, want)
    if name == "route" and _is_tie(got, want):
        return
    for part, tensor in got.items():
        ours, theirs = tensor, want[part]
        if before.get("mask") == "block" and part in ROW_AXES:  # rows after a drafter's block are undefined
            ours, theirs = (rows.narrow(ROW_AXES[part], 0, before.get("block", ROWS)) for rows in (ours, theirs))
        if difference := describe_difference(part, ours, theirs):
            raise CheckError(call, f"{part} differs from the reference's: {difference}")


def _settle_ties(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """If the best two logits of a row are equal up to rounding, accept either token as the reference's choice."""
    logits, ids, chosen = want["logits"], want.get("ids"), got["out"].to(want["out"].device)
    rows = chosen.long() if ids is None else (ids == chosen.unsqueeze(1)).int().argmax(1)
    taken = logits.gather(1, rows.clamp(0, logits.shape[1] - 1).unsqueeze(1))[:, 0]
    is_tie = (chosen >= 0) & (logits.amax(1) - taken <= 2 * EXACT * logits.abs().amax())
    want["out"] = torch.where(is_tie, chosen, want["out"])


def _is_tie(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    """Return whether the chosen experts differ in exactly one row, and all weights are equal up to rounding."""
    ours, theirs = (found["routing.experts"].to(want["routing.experts"].device) for found in (got, want))
    differing = (ours != theirs).any(1)
    weights = "routing.weights"
    return int(differing.sum()) == 1 and not describe_difference("weights", got[weights], want[weights])


class RowRecorder:
    """Recorder of one row of the results of every operation, to compare bits."""

    def __init__(self, stepper: Stepper, row: int, slot: int) -> None:
        self.found: list[tuple[str, dict[str, Tensor]]] = []
        self._row, self._slot, self._call_names = row, slot, CallNames(stepper)  # slot: position in the KV cache

    def record(self, ops: Ops) -> Ops:
        """Return operations that record the row of every call, except those of `BY_EXPERT`."""
        return wrap_ops(ops, self._wrap)

    def _wrap(self, name: str, op: Op) -> Op:
        reference = getattr(REFERENCES, name)

        def run(*args: Any, **kwargs: Any) -> None:
            arguments = bind_arguments(reference, args, kwargs)
            op(**arguments)
            if name not in BY_EXPERT:
                self.found.append((self._call_names.name(name, arguments), dict(self._of_row(arguments))))

        return run

    def _of_row(self, arguments: Arguments) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in writable_tensors(arguments).items():
            if name in ROW_AXES:
                yield (
                    name,
                    tensor.select(ROW_AXES[name], self._row).flatten().clone(memory_format=torch.contiguous_format),
                )
            elif name.startswith("cache."):
                yield name, tensor[self._slot].clone()

    def check(self, other: "RowRecorder") -> None:
        """Raise CheckError for the first operation whose bits for the row differ from the other recording."""
        for (call, ours), (_, theirs) in zip(self.found, other.found, strict=True):
            for part, tensor in ours.items():
                if not same_bits(tensor, theirs[part]):
                    raise CheckError(call, f"a row's bits in {part} depend on its index or on other rows")
