"""Compare drafters, each alone over the same target in llama.cpp, on the same prompts.

Each is measured with as many draft tokens as pay off, and with a fixed draft length, which shows how often it is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from localdflash.base.errors import UsageError
from localdflash.engine.calibrate import calibrate
from localdflash.engine.controller import Controller
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Drafter
from localdflash.engine.stats import Stats
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.bench_run import PromptRun, prompt_ids, rotated, run_prompt
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.bench.decoding_modes import Always
from localdflash.lab.bench.pace import CountItems
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.chat_request import render_chat
from localdflash.text.chat_template import TemplateMessage

PLAIN, DRAFTING, FORCED = "plain", "drafting", "forced"
FIXED = 4  # nodes of the drafts of one length; a block has its own
TOKENS = 128  # of an answer, at most

Ask = Callable[[LoadedPair], "list[PromptIds]"]


@dataclass(frozen=True)
class PromptIds:
    """Prompt as token ids."""

    ids: Sequence[int]
    ends: frozenset[int]
    max_tokens: int


def completions(limit: int | None) -> Ask:
    """Return the prompts for a completion pair."""

    def ask(loaded: LoadedPair) -> list[PromptIds]:
        found = prompt_set.load(limit)
        return [PromptIds(*prompt_ids(loaded, prompt), min(prompt.max_tokens, TOKENS)) for prompt in found]

    return ask


def chats(limit: int | None) -> Ask:
    """Return the prompts for a chat pair, without those with a JSON schema."""

    def ask(loaded: LoadedPair) -> list[PromptIds]:
        found = [prompt for prompt in chat_prompts.load(limit) if not prompt.schema]
        return [
            PromptIds(
                render_chat(loaded, [TemplateMessage("user", prompt.question)]).encode(),
                loaded.tokenizer.ends,
                min(prompt.max_tokens, TOKENS),
            )
            for prompt in found
        ]

    return ask


class FixedLength(Always):
    """Controller that verifies drafts of a fixed length in every step."""

    def choose_length(self, drafter: str, limit: int) -> int:
        """See `Controller`."""
        return min(limit, FIXED)


def run(options: Options, drafters: Sequence[str], ask: Ask, repeats: int, count: CountItems) -> dict[str, Any]:
    """Measure the pair's own drafter, where it has one, and others; return the result object."""
    rows = list[dict[str, Any]]()
    for spec in dict.fromkeys((options.drafter, *drafters)):
        with LoadedPair(replace(options, drafter=spec, backend="llama.cpp")) as loaded:
            assert loaded.host
            model = next((drafter for drafter in loaded.host.drafters if drafter.is_model), None)
            if model:
                rows.append({"drafter": spec or "the pair's", **_measured(loaded, model, ask(loaded), repeats, count)})
            elif spec:
                raise UsageError(f"drafter {spec}: {loaded.notice or 'nothing of it can draft here'}")
    return {
        "pair": options.pair,
        "backend": "llama.cpp",
        "threads": options.threads,
        "fixed_nodes": FIXED,
        "drafters": rows,
    }


def _measured(
    loaded: LoadedPair, model: Drafter, asked: Sequence[PromptIds], repeats: int, count: CountItems
) -> dict[str, Any]:
    assert loaded.host
    target, costs = loaded.host.target, calibrate(loaded.host.target, [model])
    always = FixedLength() if model.is_autoregressive else Always()
    pairs = {
        PLAIN: HostPair(target),
        DRAFTING: HostPair(target, [model], costs),
        FORCED: HostPair(target, [model], always),
    }
    totals, identical = {way: Stats() for way in pairs}, 0
    for number, one in enumerate(asked):
        runs: dict[str, list[PromptRun]] = {way: [] for way in pairs}
        for repeat in range(repeats):
            for way, pair in rotated([*pairs.items()], number + repeat):
                runs[way].append(run_prompt(pair, one.ids, one.ends, one.max_tokens))
                pair.forget()
        identical += all(run.ids == runs[PLAIN][0].ids for found in runs.values() for run in found)
        for way, found in runs.items():
            totals[way].merge(min(found, key=lambda run: run.stats.total_ms).stats)
        count(number + 1, len(asked), model.name)
    rates = {way: stats.tokens_per_second for way, stats in totals.items()}
    return {
        "kind": model.name,
        "rows": loaded.rows,
        "tokens": totals[DRAFTING].tokens,
        "tok_s": {way: round(rate, 1) for way, rate in rates.items()},
        "over_plain": {way: round(rates[way] / rates[PLAIN], 3) for way in (DRAFTING, FORCED)},
        "tau": {way: round(totals[way].tau, 3) for way in (DRAFTING, FORCED)},
        "accept_by_slot": totals[FORCED].acceptance(),
        "draft_ms": _draft_ms(costs, model),
        "identical": f"{identical}/{len(asked)}",
    }


def _draft_ms(costs: Controller, model: Drafter) -> dict[str, float]:
    """Return the measured milliseconds of a block, or of drafts of one and of several nodes."""
    lengths = (1, FIXED) if model.is_autoregressive else (model.max_draft_tokens,)
    return {str(nodes): round(costs.predict_draft_ms(model.name, nodes), 3) for nodes in lengths}
