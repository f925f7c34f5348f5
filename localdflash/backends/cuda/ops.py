"""The operations that a step is made of, in two sets: Triton kernels, and the torch references that define them.

The decoder is written once, against a set. On a GPU it gets the kernels; on a CPU the references make it the oracle of
the whole pair; under Triton's interpreter the kernels run on a CPU too.
"""

from collections.abc import Callable
from dataclasses import dataclass

from localdflash.kernels.cuda import (
    attention,
    convolve,
    embed,
    head,
    lookup_kernel,
    markov,
    matmul,
    moe,
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
    """One set; the contracts are the kernels' own docstrings."""

    set_back: Op
    embed: Op
    qkv: Op
    attention: Op
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


KERNELS = Ops(
    set_back=split_k.set_back,
    embed=embed.embed,
    qkv=qkv.qkv,
    attention=attention.attention,
    residual=residual.residual,
    swiglu=swiglu.swiglu,
    route=moe.route,
    experts_gate_up=moe.experts_gate_up,
    experts_down=moe.experts_down,
    combine=moe.combine,
    matmul=matmul.matmul,
    convolve_in=convolve.convolve_in,
    convolve_out=convolve.convolve_out,
    head=head.head,
    markov_anchor=markov.markov_anchor,
    markov_slot=markov.markov_slot,
    top_k=selector.top_k,
    select=selector.select,
    sample=sample.sample,
    gather_taps=residual.gather_taps,
    begin=rounds.begin,
    next_tokens=rounds.next_tokens,
    propose=rounds.propose,
    caught_up=rounds.caught_up,
    lookup=lookup_kernel.lookup,
    accept=rounds.accept,
)
REFERENCES = Ops(
    set_back=split_k.set_back_reference,
    embed=embed.embed_reference,
    qkv=qkv.qkv_reference,
    attention=attention.attention_reference,
    residual=residual.residual_reference,
    swiglu=swiglu.swiglu_reference,
    route=moe.route_reference,
    experts_gate_up=moe.experts_gate_up_reference,
    experts_down=moe.experts_down_reference,
    combine=moe.combine_reference,
    matmul=matmul.matmul_reference,
    convolve_in=convolve.convolve_in_reference,
    convolve_out=convolve.convolve_out_reference,
    head=head.head_reference,
    markov_anchor=markov.markov_anchor_reference,
    markov_slot=markov.markov_slot_reference,
    top_k=selector.top_k_reference,
    select=selector.select_reference,
    sample=sample.sample_reference,
    gather_taps=residual.gather_taps_reference,
    begin=rounds.begin_reference,
    next_tokens=rounds.next_tokens_reference,
    propose=rounds.propose_reference,
    caught_up=rounds.caught_up_reference,
    lookup=lookup_kernel.lookup_reference,
    accept=rounds.accept_reference,
)
