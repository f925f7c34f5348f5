"""Code benchmark: drafting and the baseline, interleaved on the same prompts and compared token by token.

For each prompt and mode the fastest repeat counts. On a CPU, llama.cpp without drafting is a further mode. Its text may
differ, because llama.cpp rounds differently.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from localdflash.base.errors import ModelError, NoDevice
from localdflash.engine.generate import Request, generate
from localdflash.engine.pair import Pair
from localdflash.engine.sampling import Constraint
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats
from localdflash.lab.bench.decoding_modes import open_modes
from localdflash.lab.bench.pace import MIN_LIMIT_FOR_OTHERS, Watcher, describe_duration, limit_tokens, measure_pace
from localdflash.lab.bench.prompt_set import CATEGORIES, BenchPrompt, Category, load
from localdflash.lab.bench.spread import spread
from localdflash.lab.bench.verify_table import SECONDS
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.proof import check_first
from localdflash.models.backend_names import RUNNERS, Runner
from localdflash.models.load_options import Options
from localdflash.text.chat_template import TemplateMessage, encode_chat
from localdflash.text.fim_formats import build, stop_ids

Mode = TypeVar("Mode")

OTHER_BACKEND_PROMPTS = 2  # per category; enough to see which backend decodes fastest
OTHER_TOKENS = 24  # maximum length of an answer from another backend
OTHER_SECONDS = 20.0  # estimated duration of the verify table and the runs on other backends


@dataclass
class PromptRun:
    """Tokens, statistics and TTFT of one run of one prompt in one mode."""

    ids: list[int]
    stats: Stats
    first_token_ms: float


@dataclass
class CategoryRuns:
    """Fastest run of each prompt of one category, by mode; `plain` is decoding without drafting."""

    plain: list[PromptRun] = field(default_factory=list)
    drafted: list[PromptRun] = field(default_factory=list)
    llama: list[PromptRun] = field(default_factory=list)  # llama.cpp without drafting; empty if it was not run
    identical: int = 0  # prompts for which all plain and drafted runs gave the same tokens

    def add(self, plain: list[PromptRun], drafted: list[PromptRun], llama: Sequence[PromptRun] = ()) -> None:
        """Add the fastest run of one prompt in each mode; the arguments are all runs of the prompt."""
        for fastest, runs in ((self.plain, plain), (self.drafted, drafted), (self.llama, llama)):
            fastest.extend(sorted(runs, key=lambda run: run.stats.total_ms)[:1])
        self.identical += all(run.ids == plain[0].ids for run in (*plain, *drafted))

    def report(self, other_plain: float) -> dict[str, Any]:
        """Return the category's result as JSON values. `other_plain`: best tok/s of other backends, 0 if unmeasured."""
        total = Stats()
        for run in self.drafted:
            total.merge(run.stats)
        plain_rate, llama_rate = rate(self.plain), rate(self.llama)
        best_plain = max(plain_rate, llama_rate, other_plain)
        return {
            "prompts": len(self.drafted),
            "tokens": total.tokens,
            "ar_tok_s": round(plain_rate, 1),
            **({"llama_cpp_ar_tok_s": round(llama_rate, 1)} if self.llama else {}),
            "best_ar_tok_s": round(best_plain, 1),
            "tok_s": round(total.tokens_per_second, 1),
            "speedup": round(total.tokens_per_second / plain_rate, 3),
            "over_best_ar": round(total.tokens_per_second / best_plain, 3),
            **({"ar_over_llama_cpp_ar": round(plain_rate / llama_rate, 3)} if self.llama else {}),
            "tau": round(total.tau, 3),
            "accept_by_slot": total.acceptance(),
            "steps_by_drafter": total.steps_by_drafter,
            "identical": f"{self.identical}/{len(self.drafted)}",
            "ttft_ms": spread([run.first_token_ms for run in self.drafted]),
        }


def rate(runs: Sequence[PromptRun]) -> float:
    """Return tokens per second; 0 without runs."""
    ms = sum(run.stats.total_ms for run in runs)
    return count_tokens(runs) / ms * 1e3 if ms else 0.0


def count_tokens(runs: Sequence[PromptRun]) -> int:
    """Return the number of generated tokens."""
    return sum(run.stats.tokens for run in runs)


def prompt_ids(loaded: LoadedPair, prompt: BenchPrompt) -> tuple[list[int], frozenset[int]]:
    """Return a prompt's token ids and the ids of the tokens that end its answer."""
    tokenizer = loaded.tokenizer
    if prompt.question:
        template = tokenizer.chat_template() or ""
        return encode_chat(tokenizer, template, [TemplateMessage("user", prompt.question)]), tokenizer.ends
    form = loaded.fim_format()
    return build(form, tokenizer, prompt.prefix, prompt.suffix), stop_ids(form, tokenizer)


def run_prompt(
    pair: Pair,
    ids: Sequence[int],
    ends: frozenset[int],
    limit: int,
    params: SamplingParams | None = None,
    constraint: Constraint | None = None,
) -> PromptRun:
    """Generate from a cold cache, greedily by default."""
    pair.forget()
    request = Request(ids, limit, params or SamplingParams(), ends, constraint=constraint)
    tokens = [token for step in generate(pair, request) for token in step.tokens]
    return PromptRun(tokens, request.stats, request.ttft_ms)


def run(options: Options, limit: int | None, repeats: int, watcher: Watcher) -> dict[str, Any]:
    """Run the whole prompt set; return the result object."""
    max_tokens = limit_tokens(limit)
    prompts = [replace(prompt, max_tokens=min(prompt.max_tokens, max_tokens)) for prompt in load(limit)]
    categories = {name: CategoryRuns() for name in CATEGORIES}
    check_first(options)
    with LoadedPair(options) as loaded, open_modes(loaded, options) as modes:
        pairs: dict[str, Pair | None] = {"plain": modes.plain, "drafted": loaded.pair, "llama": modes.llama}
        encoded = [prompt_ids(loaded, prompt) for prompt in prompts]
        paces = [measure_pace(pair, *encoded[0]) for pair in pairs.values() if pair]
        seconds = [
            repeats * sum(pace.seconds(len(ids), prompt.max_tokens) for pace in paces)
            for prompt, (ids, _) in zip(prompts, encoded, strict=True)
        ]
        total_seconds = 2 * sum(seconds) + OTHER_SECONDS  # DFlash alone runs every prompt once more
        watcher.plan(
            total_seconds,
            f"{len(prompts)} prompts, {len(paces)} modes interleaved, {repeats} times; then step costs and other"
            f" backends. {describe_duration(total_seconds)} at most.",
        )
        for number, prompt in enumerate(prompts):
            ids, ends = encoded[number]
            runs: dict[str, list[PromptRun]] = {name: [] for name in pairs}
            for repeat in range(repeats):
                for name, pair in rotate([*pairs.items()], number + repeat):
                    if pair:
                        runs[name].append(run_prompt(pair, ids, ends, prompt.max_tokens))
            categories[prompt.category].add(**runs)
            watcher.done(seconds[number], f"{number + 1}/{len(prompts)} {prompt.id}")
        watcher.done(0.0, "step costs")
        verify_seconds = min(limit / 2, SECONDS) if limit else SECONDS
        backend = loaded.backend
        step_costs = {"step_ms": modes.step_costs(), "verify": modes.measure_verify(verify_seconds)}
        loaded.pair.forget()
        acceptance = _acceptance(loaded, modes.dflash_alone, prompts) if modes.dflash_alone else {}
        machine, rows = modes.machine(), {"rows": loaded.width_status} if loaded.width_status else {}
    watcher.done(0.0, "other backends")
    best = {} if limit and limit < MIN_LIMIT_FOR_OTHERS else _other_baselines(options, backend)
    return {
        "pair": options.pair,
        "backend": backend,
        "threads": options.threads,
        **rows,
        "categories": {name: category.report(best.get(name, 0.0)) for name, category in categories.items()},
        "overall": report_overall(categories, best),
        "dflash_alone": acceptance,
        **step_costs,
        **machine,
    }


def rotate(modes: list[Mode], offset: int) -> list[Mode]:
    """Return the modes, rotated so that the one at index `offset` (modulo their number) comes first."""
    first = offset % len(modes)
    return modes[first:] + modes[:first]


def report_overall(categories: Mapping[Category, CategoryRuns], best: Mapping[str, float]) -> dict[str, Any]:
    """Return the result over all categories; `best`: best tok/s of other backends by category, where measured."""
    total, other_seconds = CategoryRuns(), 0.0
    for name, category in categories.items():
        total.plain += category.plain
        total.drafted += category.drafted
        total.llama += category.llama
        total.identical += category.identical
        other_seconds += count_tokens(category.plain) / best[name] if best.get(name) else math.inf
    return total.report(count_tokens(total.plain) / other_seconds if other_seconds else 0.0)


def _acceptance(loaded: LoadedPair, pair: Pair, prompts: Sequence[BenchPrompt]) -> dict[str, Any]:
    """Return, by category, the tokens per verify step and the acceptance by draft position of DFlash alone."""
    totals: dict[str, Stats] = {}
    for prompt in prompts:
        run = run_prompt(pair, *prompt_ids(loaded, prompt), prompt.max_tokens)
        totals.setdefault(prompt.category, Stats()).merge(run.stats)
    pair.forget()
    return {name: {"tau": round(s.tau, 3), "accept_by_slot": s.acceptance()} for name, s in totals.items()}


def _other_baselines(options: Options, running: Runner) -> dict[str, float]:
    """Return the tok/s of the fastest other backend by category, without drafting and over a few prompts."""
    best: dict[str, float] = {}
    for backend in RUNNERS:
        if backend in (running, "cuda") or (backend == "llama.cpp" and running != "cuda"):
            continue
        with suppress(ModelError, NoDevice), LoadedPair(replace(options, backend=backend, draft=False)) as loaded:
            for name in CATEGORIES:
                runs = []
                for prompt in load(OTHER_BACKEND_PROMPTS):
                    if prompt.category == name:
                        tokens = min(prompt.max_tokens, OTHER_TOKENS)
                        runs.append(run_prompt(loaded.pair, *prompt_ids(loaded, prompt), tokens))
                best[name] = max(best.get(name, 0.0), rate(runs))
    return best
