"""Identity of pairs on a GPU through llama.cpp: drafted text, text without drafts, and the processor's.

`PYTHONPATH=. python -P lab/scripts/pairs_on_gpu.py --json bench/results/pairs-on-gpu.json [--device Vulkan0] [PAIR
...]`. A pair runs with `--rows exact`; every step verifies the model's whole draft.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from localdflash.backends.llamacpp.llama_library import find_gpu
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.host_pair import HostPair
from localdflash.engine.stats import Stats
from localdflash.lab import result_file
from localdflash.lab.bench.bench_run import prompt_ids, run_prompt
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.bench.decoding_modes import Always
from localdflash.lab.bench.prompt_set import load
from localdflash.lab.cli.bench_chat import chats
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.text.chat_template import TemplateMessage, encode_chat
from tests.support.costs import drafting_pays

Prompt = tuple[list[int], frozenset[int]]  # ids, and the tokens that end an answer


def shortest(loaded: LoadedPair, count: int) -> list[Prompt]:
    """The shortest prompts of the bench for this pair: of chats, or of completions."""
    if not chats(loaded.options.pair, "auto"):
        found = [prompt_ids(loaded, prompt) for prompt in load(None)]
    else:
        tokenizer = loaded.tokenizer
        template = tokenizer.chat_template() or ""
        asked = [TemplateMessage("user", prompt.question) for prompt in chat_prompts.load() if not prompt.schema]
        found = [(encode_chat(tokenizer, template, [message]), tokenizer.ends) for message in asked]
    return sorted(found, key=lambda prompt: len(prompt[0]))[:count]


def texts(pair: HostPair, prompts: Sequence[Prompt], limit: int) -> tuple[list[list[int]], Stats]:
    """The answers' ids, and how they came."""
    found, total = list[list[int]](), Stats()
    for ids, ends in prompts:
        run = run_prompt(pair, ids, ends, limit)
        found.append(run.ids)
        total.merge(run.stats)
    return found, total


def same(found: Sequence[list[int]], expected: Sequence[list[int]]) -> str:
    """Return how many answers are the same, of how many."""
    return f"{sum(a == b for a, b in zip(found, expected, strict=True))}/{len(found)}"


def measured(name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Measure one pair."""
    began = time.perf_counter()
    options = Options(name, "llama.cpp", asked.threads, 512, rows="exact", costs=drafting_pays)
    with LoadedPair(replace(options, device="cpu")) as loaded:
        assert loaded.host
        prompts, processor = shortest(loaded, asked.prompts), loaded.rows
        on_processor, _ = texts(HostPair(loaded.host.target), prompts, asked.tokens)
    with LoadedPair(replace(options, device=asked.device)) as loaded:
        assert loaded.host
        target, models = loaded.host.target, [drafter for drafter in loaded.host.drafters if drafter.is_model]
        plain, _ = texts(HostPair(target), prompts, asked.tokens)
        drafted, total = texts(HostPair(target, models, Always(models[0].name)), prompts, asked.tokens)
        rows, where = loaded.rows, loaded.device
    prefixes = [count_common_prefix(a, b) for a, b in zip(plain, on_processor, strict=True)]
    return {
        "on": find_gpu(asked.device).description,
        "device": where,
        "rows": rows,
        "rows_of_the_processor": processor,
        "prompt_tokens": [len(ids) for ids, _ in prompts],
        "tokens": total.tokens,
        "steps_by_drafter": total.steps_by_drafter,
        "tau": round(total.tau, 3),
        "identical_to_plain": same(drafted, plain),
        "same_as_on_the_processor": same(plain, on_processor),
        "tokens_until_they_differ": prefixes,
        "seconds": round(time.perf_counter() - began),
    }


def main() -> None:
    """Measure all pairs, one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", default=["embedded", "smollm2-135m"])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    asked = parser.parse_args()
    for name in asked.pairs:
        result_file.write(asked.json, measured(name, asked), name)


if __name__ == "__main__":
    main()
