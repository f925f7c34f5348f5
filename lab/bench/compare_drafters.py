"""Compare drafters on the same prompts in llama.cpp: each alone proposes tokens that the same target verifies.

`DRAFTING` verifies as many draft tokens as pay off; `FORCED` always the whole draft, which shows the acceptance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.engine.calibrate import calibrate
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Drafter
from localdflash.engine.stats import Stats
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.bench_run import PromptRun, prompt_ids, rotate, run_prompt
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.bench.decoding_modes import FullDraftController
from localdflash.lab.bench.pace import CountItems
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.chat_request import render_chat
from localdflash.text.chat_template import TemplateMessage

BASELINE, DRAFTING, FORCED = "plain", "drafting", "forced"
MAX_ANSWER_TOKENS = 128

LoadPrompts = Callable[[LoadedPair], "list[PromptIds]"]


@dataclass(frozen=True)
class PromptIds:
    """Prompt as token ids; the tokens in `ends` end its answer."""

    ids: Sequence[int]
    ends: frozenset[int]
    max_tokens: int


def completions(limit: int | None) -> LoadPrompts:
    """Return a function that loads the prompts for a completion pair."""

    def load_prompts(loaded: LoadedPair) -> list[PromptIds]:
        prompts = prompt_set.load(limit)
        encoded = [(*prompt_ids(loaded, prompt), prompt.max_tokens) for prompt in prompts]
        return [PromptIds(ids, ends, min(max_tokens, MAX_ANSWER_TOKENS)) for ids, ends, max_tokens in encoded]

    return load_prompts


def chats(limit: int | None) -> LoadPrompts:
    """Return a function that loads the prompts for a chat pair, except prompts with a JSON schema."""

    def load_prompts(loaded: LoadedPair) -> list[PromptIds]:
        prompts = [prompt for prompt in chat_prompts.load(limit) if not prompt.schema]
        return [
            PromptIds(
                render_chat(loaded, [TemplateMessage("user", prompt.question)]).encode(),
                loaded.tokenizer.ends,
                min(prompt.max_tokens, MAX_ANSWER_TOKENS),
            )
            for prompt in prompts
        ]

    return load_prompts


def run(
    options: Options, drafters: Sequence[str], load_prompts: LoadPrompts, repeats: int, count: CountItems
) -> dict[str, Any]:
    """Measure the pair's drafter, if any, and `drafters` (specs); UsageError for a spec that cannot draft here."""
    results = list[dict[str, Any]]()
    for spec in dict.fromkeys((options.drafter, *drafters)):  # None: the pair's drafter, skipped if it has none
        with LoadedPair(replace(options, drafter=spec, backend="llama.cpp")) as loaded:
            assert loaded.host_pair
            model = next((drafter for drafter in loaded.host_pair.drafters if drafter.is_model), None)
            if model:
                result = _measure(loaded, model, load_prompts(loaded), repeats, count)
                results.append({"drafter": spec or "the pair's", **result})
            elif spec:
                raise UsageError(f"drafter {spec}: {loaded.notice or 'it cannot draft on this machine'}")
    return {
        "pair": options.pair,
        "backend": "llama.cpp",
        "threads": options.threads,
        "drafters": results,
    }


def _measure(
    loaded: LoadedPair, model: Drafter, prompts: Sequence[PromptIds], repeats: int, count: CountItems
) -> dict[str, Any]:
    assert loaded.host_pair
    target, costs = loaded.host_pair.target, calibrate(loaded.host_pair.target, [model])
    pairs = {
        BASELINE: HostPair(target),
        DRAFTING: HostPair(target, [model], costs),
        FORCED: HostPair(target, [model], FullDraftController()),
    }
    totals, identical = {mode: Stats() for mode in pairs}, 0
    for number, prompt in enumerate(prompts):
        runs: dict[str, list[PromptRun]] = {mode: [] for mode in pairs}
        for repeat in range(repeats):
            for mode, pair in rotate([*pairs.items()], number + repeat):
                runs[mode].append(run_prompt(pair, prompt.ids, prompt.ends, prompt.max_tokens))
                pair.forget()
        identical += all(run.ids == runs[BASELINE][0].ids for repeated in runs.values() for run in repeated)
        for mode, repeated in runs.items():
            totals[mode].merge(min(repeated, key=lambda run: run.stats.total_ms).stats)
        count(number + 1, len(prompts), model.name)
    rates = {mode: stats.tokens_per_second for mode, stats in totals.items()}
    return {
        "kind": model.name,
        "rows": loaded.width_status,  # whether `--rows exact` ensures identical tokens, and at what cost
        "tokens": totals[DRAFTING].tokens,
        "tok_s": {mode: round(rate, 1) for mode, rate in rates.items()},
        "over_plain": {mode: round(rates[mode] / rates[BASELINE], 3) for mode in (DRAFTING, FORCED)},
        "tau": {mode: round(totals[mode].tau, 3) for mode in (DRAFTING, FORCED)},
        "accept_by_slot": totals[FORCED].acceptance(),
        "draft_ms": round(costs.draft_ms[model.name], 3),
        "identical": f"{identical}/{len(prompts)}",
    }
