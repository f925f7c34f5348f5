"""Sets of operations that check themselves: each call is compared with its reference, or its rows are recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.cuda_sizes import is_out_of_memory
from localdflash.backends.cuda.device import describe_error
from localdflash.backends.cuda.ops import REFERENCES, Op, Ops
from localdflash.backends.cuda.proof.calls import Arguments, bound, copied, planes_in, run_reference, tensors
from localdflash.backends.cuda.stack import ROWS, Stack
from localdflash.backends.cuda.stepper import Stepper

# Of the largest value: float32 sums in another order; sums of values that were rounded to float16; such values.
EXACT, SUMS, ROUNDED = 5e-5, 2e-3, 2e-3
CODES = {torch.int8: 1.01, torch.float8_e4m3fn: 32.5}  # the widest step of an 8-bit KV cache
ODD_CODES = 0.03  # of the codes may be off by one: values that lie between two


class Unsound(Exception):
    """An operation that did not do what it should: which one, and what it did."""

    def __init__(self, operation: str, what: str) -> None:
        super().__init__(f"{operation}: {what}")
        self.operation = operation


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same bits, NaN too."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def difference(name: str, got: Tensor, want: Tensor) -> str:
    """Return how a result differs from the reference's by more than rounding; "" if it does not."""
    want = want.to(got.device)
    if got.dtype in CODES:
        return _of_codes(got, want)
    if not got.is_floating_point():
        return "" if torch.equal(got, want) else f"{int((got != want).sum())} of {got.numel()} integers differ"
    rounding = SUMS if "sums" in name else EXACT if got.dtype == torch.float32 else ROUNDED
    got, want = got.double(), want.double()
    alike = (got == want) | (got.isnan() & want.isnan())  # infinities; NaN that was there before, in dead rows
    error = torch.where(alike, 0.0, (got - want).abs())
    if bool(error.isnan().any()):
        return f"{int(error.isnan().sum())} of {got.numel()} numbers are NaN"
    finite = want[want.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    part = float(error.max()) / max(largest, 1e-30)
    return f"off by {part:.1e} of the largest value" if part > rounding else ""


def _of_codes(got: Tensor, want: Tensor) -> str:
    odd = float((got.view(torch.uint8) != want.view(torch.uint8)).float().mean())
    step = float((got.float() - want.float()).abs().nan_to_num(float("inf")).max())
    if odd > ODD_CODES or step > CODES[got.dtype]:
        return f"{odd:.1%} of the codes differ, by up to {step:g}"
    return ""


Around = Callable[[str, Op], Op]
Watch = Callable[[str], None]
ROW_AXES = {"x": 0, "a": 0, "a_out": 0, "out": 0, "q_out": 0, "logits": 0, "choice": 0}
ROW_AXES |= {"sums": 1, "sums_out": 1, "squares": 1, "squares_out": 1}
BY_SLOT = frozenset({"experts_gate_up", "experts_down"})  # whose rows lie by expert


def around(ops: Ops, wrap: Around) -> Ops:
    """Return the set with every operation wrapped."""
    return Ops(**{field.name: wrap(field.name, getattr(ops, field.name)) for field in fields(Ops)})


@contextmanager
def using(stepper: Stepper, ops: Ops) -> Iterator[None]:
    """Have a pair's launches go through another set."""
    holders: list[Stepper | Stack] = [stepper, stepper.stack, *([stepper.block.stack] if stepper.block else [])]
    before = [holder.ops for holder in holders]
    for holder in holders:
        holder.ops = ops
    try:
        yield
    finally:
        for holder, own in zip(holders, before, strict=True):
            holder.ops = own


def telling(ops: Ops, watch: Watch) -> Ops:
    """Return the set, where `watch` hears what is launched next, and an error on the device is that launch's."""

    def wrap(name: str, op: Op) -> Op:
        def run(*given: Any, **named: Any) -> None:
            watch(name)
            op(*given, **named)
            if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()

        return run

    return around(ops, wrap)


class Places:
    """Where in the pair an operation is called: known from the matrix that it multiplies, or that was the last."""

    def __init__(self, stepper: Stepper) -> None:
        self._of = {id(planes): name for name, weights in _weights(stepper) for planes in planes_in(weights)}
        self._last = ""

    def name(self, operation: str, arguments: Arguments) -> str:
        """Return the operation with its place: "attention of layer 3"."""
        found = (self._of[id(planes)] for planes in planes_in(arguments) if id(planes) in self._of)
        self._last = next(found, self._last)
        return f"{operation} of {self._last}" if self._last else operation


def _weights(stepper: Stepper) -> Iterator[tuple[str, object]]:
    """Yield the parts of a pair by name; what the drafter shares with the target is the target's, which comes last."""
    drafter = stepper.block.weights if stepper.block else None
    for owner, weights in (("the drafter's ", drafter), ("", stepper.target)):
        if weights:
            yield f"{owner}output", weights.head
            yield f"{owner}embedding", weights.embedding
            yield from ((f"{owner}layer {index}", layer) for index, layer in enumerate(weights.layers))
    if drafter:
        yield "the drafter's context", (drafter.fuse, drafter.context)
        yield "the drafter's slots", drafter.chooser


def beside_references(stepper: Stepper, watch: Watch) -> Ops:
    """Return the pair's operations, each compared with a second run and its reference; they raise Unsound."""
    places = Places(stepper)

    def wrap(name: str, op: Op) -> Op:
        reference = getattr(REFERENCES, name)

        def run(*given: Any, **named: Any) -> None:
            arguments = bound(reference, given, named)
            place = places.name(name, arguments)
            watch(place)
            before = copied(arguments)
            got = _run_twice(place, op, arguments)
            if not any(planes.scaling == "product" for planes in planes_in(arguments)):  # FP4 has another arithmetic
                _compare(place, name, got, before, reference)

        return run

    return around(stepper.ops, wrap)


def _run_twice(place: str, op: Op, arguments: Arguments) -> dict[str, Tensor]:
    """Return an operation's results after two runs; Unsound if their bits differ or the device reports an error."""
    twin = copied(arguments)
    try:
        op(**twin)
        op(**arguments)
        got, again = tensors(arguments), tensors(twin)
        odd = next((part for part, tensor in got.items() if not same_bits(tensor, again[part])), "")
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise Unsound(place, describe_error(error)) from error
    if odd:
        raise Unsound(place, f"two runs on the same numbers differ in {odd}")
    return got


def _compare(place: str, name: str, got: dict[str, Tensor], before: Arguments, reference: Op) -> None:
    if name == "head" and before.get("logits") is None:
        planes = before["planes"]
        before["logits"] = torch.zeros(ROWS, planes.n, device=planes.base.device)
    want = tensors(run_reference(reference, before))
    if name == "head":
        _settle_ties(got, want)
    if name == "route" and _is_tie(got, want):
        return
    for part, tensor in got.items():
        ours, theirs = tensor, want[part]
        if before.get("mask") == "block" and part in ROW_AXES:  # attention may leave anything behind a drafter's block
            ours, theirs = (one.narrow(ROW_AXES[part], 0, before.get("block", ROWS)) for one in (ours, theirs))
        if what := difference(part, ours, theirs):
            raise Unsound(place, f"{part} is not the reference's: {what}")


def _settle_ties(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    """Where the best two logits of a row are equal but for rounding, either of them is the reference's choice."""
    logits, ids, chosen = want["logits"], want.get("ids"), got["out"].to(want["out"].device)
    rows = chosen.long() if ids is None else (ids == chosen.unsqueeze(1)).int().argmax(1)
    taken = logits.gather(1, rows.clamp(0, logits.shape[1] - 1).unsqueeze(1))[:, 0]
    is_tie = (chosen >= 0) & (logits.amax(1) - taken <= 2 * EXACT * logits.abs().amax())
    want["out"] = torch.where(is_tie, chosen, want["out"])


def _is_tie(got: dict[str, Tensor], want: dict[str, Tensor]) -> bool:
    """Return whether experts that differ, in one row at most, are equally good but for rounding."""
    ours, theirs = (found["routing.experts"].to(want["routing.experts"].device) for found in (got, want))
    odd = (ours != theirs).any(1)
    return int(odd.sum()) == 1 and not difference("weights", got["routing.weights"], want["routing.weights"])


class Rows:
    """Results of every operation of the target in one row, call by call, as bits to compare."""

    def __init__(self, stepper: Stepper, row: int, slot: int) -> None:
        self.found: list[tuple[str, dict[str, Tensor]]] = []
        self._row, self._slot, self._places = row, slot, Places(stepper)  # slot: of the row in the KV cache

    def watched(self, ops: Ops) -> Ops:
        """Return the set, with every call's row kept."""
        return around(ops, self._wrap)

    def _wrap(self, name: str, op: Op) -> Op:
        reference = getattr(REFERENCES, name)

        def run(*given: Any, **named: Any) -> None:
            arguments = bound(reference, given, named)
            op(**arguments)
            if name not in BY_SLOT:
                self.found.append((self._places.name(name, arguments), dict(self._of_row(arguments))))

        return run

    def _of_row(self, arguments: Arguments) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors(arguments).items():
            if name in ROW_AXES:
                yield (
                    name,
                    tensor.select(ROW_AXES[name], self._row).flatten().clone(memory_format=torch.contiguous_format),
                )
            elif name.startswith("cache."):
                yield name, tensor[self._slot].clone()

    def check(self, other: "Rows") -> None:
        """Unsound names the first operation that gave the row other bits in the other recording."""
        for (place, ours), (_, theirs) in zip(self.found, other.found, strict=True):
            for part, tensor in ours.items():
                if not same_bits(tensor, theirs[part]):
                    raise Unsound(place, f"a row's bits in {part} depend on its place or on its neighbours")
