"""Cases of attention and of operations on tokens."""

from typing import Any

import torch
from torch import Tensor

from localdflash.backends.cuda.proof.calls import Arguments
from localdflash.kernels.cuda import (
    attention,
    lookup_kernel,
    prompt_attention,
    residual,
    rounds,
    sample,
    selector,
    split_k,
)
from localdflash.kernels.cuda.kv_cache import Cache
from localdflash.kernels.cuda.sample import SampleScratch
from tests.gpu.case import CPU, F8, F16, I8, REAL, VOCABULARY, Case, built, needed


def _attention(
    start: int, mask: str, dtype: torch.dtype, window: int = 0, heads: tuple[int, int, int] = (4, 2, 64)
) -> Case:
    q_heads, kv_heads, head_dim = (32, 8, 128) if REAL and heads == (4, 2, 64) else heads
    chunks = next(bucket for bucket in attention.BUCKETS if start + 16 <= attention.slots_of(bucket))

    def make() -> Arguments:
        slots, width = start + 48, q_heads * head_dim
        cache = Cache.empty(1, slots, kv_heads, head_dim, dtype, CPU).layer(0)
        cache.write(torch.arange(slots), *torch.randn(2, slots, kv_heads, head_dim))
        return {
            "q": torch.randn(16, q_heads, head_dim).half(), "cache": cache,
            "start": torch.tensor([start], dtype=torch.int32), "out": torch.zeros(16, width).half(),
            "sums": torch.zeros(width // 32, 16), "mask": mask, "window": window, "splits": chunks,
        }  # fmt: skip

    build = built(make, scratch=lambda device: attention.Scratch(device, q_heads, head_dim, chunks))
    title = f"attention {mask} {start} {window} {dtype}" + (" of 9 heads" if q_heads == 9 else "")
    chain, needs = mask == "chain", needed(dtype)
    return Case(title, attention.attention, attention.attention_reference, build, ("out", "sums"), chain, needs=needs)


def _prompt_attention(start: int, tokens: int, dtype: torch.dtype, heads: tuple[int, int, int] = (4, 2, 64)) -> Case:
    q_heads, kv_heads, head_dim = (32, 8, 128) if REAL and heads == (4, 2, 64) else heads

    def make() -> Arguments:
        slots, width = start + tokens, q_heads * head_dim
        cache = Cache.empty(1, slots, kv_heads, head_dim, dtype, CPU).layer(0)
        cache.write(torch.arange(slots), *torch.randn(2, slots, kv_heads, head_dim))
        return {
            "q": torch.randn(tokens, q_heads, head_dim).half(), "cache": cache,
            "start": torch.tensor([start], dtype=torch.int32), "out": torch.zeros(tokens, width).half(),
        }  # fmt: skip

    functions = prompt_attention.prompt_attention, prompt_attention.prompt_attention_reference
    title = f"prompt_attention {start} {tokens} {q_heads} {dtype}"
    return Case(title, *functions, built(make), ("out",), needs=needed(dtype))


def _sample(vocabulary: int, temperature: float, top_k_: int, top_p: float, min_p: float, penalty: float) -> Case:
    def make() -> Arguments:
        return {
            "logits": torch.randn(16, vocabulary) * 3,
            "floats": torch.tensor([temperature, top_p, min_p, penalty]),
            "ints": torch.tensor([top_k_, 12345, -678, 64], dtype=torch.int32),
            "tokens": torch.randint(vocabulary, (200,), dtype=torch.int32),
            "draft": torch.randint(vocabulary, (16,), dtype=torch.int32),
            "start": torch.tensor([99], dtype=torch.int32), "choice": torch.zeros(16, dtype=torch.int32),
        }  # fmt: skip

    build = built(make, scratch=lambda device: SampleScratch.empty(vocabulary, device))
    title = f"sample {temperature} {top_k_} {top_p} {min_p} {penalty}"
    return Case(title, sample.sample, sample.sample_reference, build, ("choice",))


def _top_k(n: int, k: int) -> Case:
    def make() -> Arguments:
        return {"logits": torch.randn(16, n), "values": torch.zeros(16, k),
                "tokens": torch.zeros(16, k, dtype=torch.int32)}  # fmt: skip

    build = built(make, scratch=lambda device: selector.TopKScratch(device, n))
    return Case(f"top_k {k}", selector.top_k, selector.top_k_reference, build, ("values", "tokens"))


def _select(vocabulary: int, k: int, rank: int) -> Case:
    def make() -> Arguments:
        return {
            "values": torch.randn(16, k).sort(descending=True).values,
            "tokens": torch.randint(vocabulary, (16, k), dtype=torch.int32), "selectors": torch.randn(16, rank),
            "predecessors": torch.randn(vocabulary, rank).half(), "successors": torch.randn(vocabulary, rank).half(),
            "draft": torch.full((16,), 7, dtype=torch.int32), "out": torch.zeros(16, dtype=torch.int32),
            "first": 1, "count": 7,
        }  # fmt: skip

    return Case(f"select {k}", selector.select, selector.select_reference, built(make), ("out",))


def _state(context: int, drafter: int = 0, live: int = 16) -> Tensor:
    return torch.tensor([context, drafter, live, 5, 0, 0, 2, 0], dtype=torch.int32)


def _ids(*values: int) -> Tensor:
    return torch.tensor([*values, *range(500, 516 - len(values))], dtype=torch.int32)


def _bookkeeping() -> list[Case]:
    """Return cases of the small launches of a step."""
    tokens = torch.arange(1000, 1100, dtype=torch.int32)
    text = torch.tensor([7, 8, 9, 1, 2, 3, 4, 5, 6] * 5 + [0] * 55, dtype=torch.int32)

    def case(name: str, op: Any, reference: Any, outputs: tuple[str, ...], **arguments: Any) -> Case:
        return Case(name, op, reference, built(lambda: arguments), outputs)

    record = torch.zeros(8, 24, dtype=torch.int32)
    agreeing = {"draft": _ids(*range(16)), "choice": _ids(1, 2, 3, 77), "tokens": tokens, "record": record}
    return [
        case("begin", rounds.begin, rounds.begin_reference, ("state", "draft"),
             tokens=tokens, state=_state(40), draft=_ids(), fill=77),
        case("next_tokens", rounds.next_tokens, rounds.next_tokens_reference, ("state", "ids"),
             tokens=tokens, state=_state(90), ids=_ids().repeat(2, 1)),
        case("propose", rounds.propose, rounds.propose_reference, ("state", "draft"),
             choice=_ids(1, 2, 3, 4, -1), state=_state(40), draft=_ids(9), first=1, drafts=7),
        case("propose from the anchor", rounds.propose, rounds.propose_reference, ("state", "draft"),
             choice=_ids(1, 2, 3, 4, -1), state=_state(40), draft=_ids(9), first=0, drafts=8),
        case("caught_up", rounds.caught_up, rounds.caught_up_reference, ("state",), state=_state(40, 30)),
        case("set_back", split_k.set_back, split_k.set_back_reference,
             ("tiles", "heads", "last", "lookup_match", "slices"),
             tiles=_ids(1) , heads=_ids(2), last=_ids(3)[:1], lookup_match=torch.tensor([5, 6]), slices=_ids(4)),
        case("accept", rounds.accept, rounds.accept_reference, ("tokens", "state", "record"),
             **agreeing, state=_state(40, live=3)),
        Case("lookup", lookup_kernel.lookup, lookup_kernel.lookup_reference, built(
            lambda: {"tokens": text, "state": _state(40), "draft": _ids(), "min_match": 2, "limit": 15,
                     "documents": torch.arange(5000, dtype=torch.int32),
                     "length": torch.tensor([5000], dtype=torch.int32)},
            scratch=lambda device: torch.zeros(2, dtype=torch.int64, device=device)), ("state", "draft")),
        case("gather_taps", residual.gather_taps, residual.gather_taps_reference, ("a", "sums"),
             ring=torch.randn(32, 1280).half(), start=torch.tensor([25], dtype=torch.int32),
             a=torch.zeros(16, 1280).half(), sums=torch.zeros(40, 16)),
    ]  # fmt: skip


CASES: list[Case] = [
    *(_attention(start, "chain", dtype) for dtype in (F16, I8, F8) for start in ((0, 250, 1000) if REAL else (250,))),
    *(_attention(3000, "chain", dtype) for dtype in ((F16, I8) if REAL else ())),
    _attention(300, "block", F16),
    _attention(300, "block", I8, window=40),
    _attention(600, "chain", F16, window=300),
    _attention(300, "chain", F16, heads=(5, 1, 64)),
    *(_attention(300, "chain", dtype, heads=(9, 3, 64)) for dtype in ((F16, I8, F8) if REAL else ())),
    *(_prompt_attention(start, 128, dtype) for start, dtype in ((0, F16), (100, I8), (100, F8))),
    *(_prompt_attention(200, 512, dtype) for dtype in ((F16, I8, F8) if REAL else ())),
    _prompt_attention(70, 48, F16, heads=(5, 1, 64)),
    *(_prompt_attention(600, 128, dtype, heads=(4, 2, 64)) for dtype in ((I8, F8) if REAL else ())),
    _sample(VOCABULARY, 0.8, 50, 0.95, 0.0, 1.0),
    _sample(VOCABULARY, 1.0, 0, 1.0, 0.0, 1.0),
    _sample(VOCABULARY, 0.7, 0, 0.9, 0.05, 1.1),
    _sample(VOCABULARY, 0.0, 0, 1.0, 0.0, 1.3),
    *(_top_k(VOCABULARY, k) for k in (4, 16)),
    _select(VOCABULARY, 16, 256),
    _select(VOCABULARY, 7, 40),
    *_bookkeeping(),
]
