"""Operations of a step, in two sets: Triton kernels, and the torch references that define them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from localdflash.backends.cuda.choices import Choices, Form
from localdflash.backends.cuda.proof.calls import bind_arguments, run_reference, writable_tensors
from localdflash.kernels.cuda import (
    attention,
    convolve,
    dense,
    embed,
    head,
    launch,
    lookup_kernel,
    markov,
    matmul,
    moe,
    prompt_attention,
    qkv,
    residual,
    rounds,
    sample,
    selector,
    split_k,
    swiglu,
)

Op = Callable[..., None]


@dataclass(frozen=True)
class Ops:
    """Set of operations; the docstrings of the kernels document them."""

    set_back: Op
    dense: Op
    embed: Op
    qkv: Op
    attention: Op
    prompt_attention: Op
    residual: Op
    swiglu: Op
    route: Op
    experts_gate_up: Op
    experts_down: Op
    combine: Op
    matmul: Op
    convolve_in: Op
    convolve_out: Op
    head: Op
    markov_anchor: Op
    markov_slot: Op
    top_k: Op
    select: Op
    sample: Op
    gather_taps: Op
    begin: Op
    next_tokens: Op
    propose: Op
    caught_up: Op
    lookup: Op
    accept: Op


MODULES = {
    **dict.fromkeys(("begin", "next_tokens", "propose", "caught_up", "accept"), rounds),
    **dict.fromkeys(("route", "experts_gate_up", "experts_down", "combine"), moe),
    **dict.fromkeys(("convolve_in", "convolve_out"), convolve),
    **dict.fromkeys(("markov_anchor", "markov_slot"), markov),
    **dict.fromkeys(("top_k", "select"), selector),
    **dict.fromkeys(("residual", "gather_taps"), residual),
    **{"embed": embed, "qkv": qkv, "attention": attention, "swiglu": swiglu, "matmul": matmul, "head": head},
    **{"prompt_attention": prompt_attention, "dense": dense, "sample": sample, "lookup": lookup_kernel},
    "set_back": split_k,
}
KERNELS = Ops(**{name: getattr(module, name) for name, module in MODULES.items()})
REFERENCES = Ops(**{name: getattr(module, f"{name}_reference") for name, module in MODULES.items()})


def select_forms(ops: Ops, choices: Choices) -> Ops:
    """Return the operations in the forms of `choices`."""
    return replace(ops, **{name: _apply_form(name, getattr(ops, name), form) for name, form in choices.forms.items()})


def _apply_form(name: str, op: Op, form: Form) -> Op:
    return low_memory(getattr(REFERENCES, name)) if form == "reference" else _simple(op)


def _simple(op: Op) -> Op:
    def run(*args: Any, **kwargs: Any) -> None:
        with launch.simplest():
            op(*args, **kwargs)

    return run


def low_memory(reference: Op) -> Op:
    """Return the reference as an operation that keeps no float32 matrix in memory afterwards."""

    def run(*args: Any, **kwargs: Any) -> None:
        arguments = bind_arguments(reference, args, kwargs)
        written = writable_tensors(arguments)
        for part, tensor in writable_tensors(run_reference(reference, arguments)).items():
            written[part].copy_(tensor)

    return run
