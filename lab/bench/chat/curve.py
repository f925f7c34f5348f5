"""Speed and acceptance by context length: documents, cut to several lengths, with questions after each."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from localdflash.engine.generate import Request, generate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import PromptRun
from localdflash.lab.bench.chat.chat_modes import DFLASH, DRAFTING, FORCED, PLAIN, Hosts, replaced_controller
from localdflash.lab.bench.chat.chat_prompts import long_document
from localdflash.lab.bench.decoding_modes import FullDraftController
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import render_chat
from localdflash.text.chat_template import TemplateMessage

LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
ANSWER_TOKENS = 48
QUESTIONS = (
    "Which of these functions would you test first, and why?",
    "Write the last function again, with type hints.",
    "What do these modules have in common?",
    "Write a short README for this code.",
)
ENCODING_SLACK = 8  # tokens by which encoding the document with the question may exceed the sum


def lengths(context: int) -> list[int]:
    """Return the context lengths to measure that fit into `context`."""
    return [length for length in LENGTHS if length <= context]


def measure(
    loaded: LoadedPair,
    hosts: Hosts,
    contexts: Sequence[int],
    documents: int,
    on_progress: Callable[[int], None] = lambda length: None,
) -> list[dict[str, Any]]:
    """Measure each context length with `QUESTIONS` on `documents` documents; `on_progress` receives each length."""
    texts = [loaded.tokenizer.encode(long_document(seed)) for seed in range(documents)]
    overhead = max(len(ids) for ids in _encode_prompts(loaded, ""))
    points = []
    for length in contexts:
        size = max(length - ANSWER_TOKENS - overhead - ENCODING_SLACK, 0)
        cut = [loaded.tokenizer.spell(tokens[:size]).decode("utf-8", "replace") for tokens in texts]
        prompts = [ids for document in cut for ids in _encode_prompts(loaded, document)]
        points.append(_measure_length(hosts, prompts, length, loaded.tokenizer.ends))
        on_progress(length)
    for pair in hosts:
        pair.forget()
    return points


def _encode_prompts(loaded: LoadedPair, document: str) -> list[list[int]]:
    """Return the prompts about a document as ids."""
    texts = [f"{document}\n\n{question}" for question in QUESTIONS]
    return [render_chat(loaded, [TemplateMessage("user", text)]).encode() for text in texts]


def _measure_length(
    hosts: Hosts, prompts: Sequence[Sequence[int]], length: int, ends: frozenset[int]
) -> dict[str, Any]:
    """Measure the prompts of one length; of two runs of a prompt in a mode, the faster one counts."""
    totals = defaultdict[str, Stats](Stats)
    identical, prefill_ms = 0, 0.0
    for pair in hosts:
        pair.forget()  # a document of the previous length is the start of this one
    for number, ids in enumerate(prompts):
        pairs = {PLAIN: hosts.plain, DRAFTING: hosts.drafting}
        order = [PLAIN, DRAFTING] if number % 2 else [DRAFTING, PLAIN]
        first = {mode: _run(pairs[mode], ids, ends) for mode in order}
        again = {mode: _run(pairs[mode], ids, ends) for mode in reversed(order)}
        runs = {mode: max(first[mode], again[mode], key=lambda run: run.stats.tokens_per_second) for mode in order}
        if any(drafter.is_model for drafter in hosts.drafting.drafters):
            with replaced_controller(hosts.drafting, FullDraftController(DFLASH)) as forced:
                runs[FORCED] = _run(forced, ids, ends)
        prefill_ms = prefill_ms or first[DRAFTING].first_token_ms  # only the first: most others reuse the KV cache
        identical += all(run.ids == runs[PLAIN].ids for run in runs.values())
        for mode, run in runs.items():
            totals[mode].merge(run.stats)
    rates = {mode: stats.tokens_per_second for mode, stats in totals.items()}
    return {
        "context": length,
        "prompt": len(prompts[0]),
        "reading_ms": round(prefill_ms, 1),
        "tok_s": {mode: round(rate, 1) for mode, rate in rates.items()},
        "over_plain": round(rates[DRAFTING] / rates[PLAIN], 3),
        "tau": {mode: round(stats.tau, 3) for mode, stats in totals.items() if mode != PLAIN},
        "accept_by_slot": totals[FORCED].acceptance(),
        "identical": f"{identical}/{len(prompts)}",
    }


def _run(pair: HostPair, ids: Sequence[int], ends: frozenset[int]) -> PromptRun:
    """Run one greedy answer; the KV cache keeps a document between its questions."""
    request = Request(ids, ANSWER_TOKENS, ends=ends)
    tokens = [token for step in generate(pair, request) for token in step.tokens]
    return PromptRun(tokens, request.stats, request.ttft_ms)
