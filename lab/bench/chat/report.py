"""Statistics of the chat benchmark's runs: rates and their ratios, whether drafting kept the text, acceptance.

A rate is tokens per second, from sums over prompts without prefill; of repeated runs, the one with the median time
counts. Each ratio of rates is also given as the median of the prompts' ratios, which is robust against outliers. `tau`
is the number of tokens per verify step; a slot is a position in a draft.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import PromptRun
from localdflash.lab.bench.chat.chat_modes import DFLASH, DRAFTING, FORCED, LLAMA, LOOKUP, PLAIN
from localdflash.lab.bench.spread import spread

SAMPLED = "sampled"  # drafting at a temperature, with a seed
SAMPLED_PLAIN = "sampled plain"
DRAFTING_MODES = (DRAFTING, DFLASH, LOOKUP, FORCED)  # see `chat_modes`; their greedy text must be that of PLAIN
BASELINES = {**dict.fromkeys(DRAFTING_MODES, PLAIN), SAMPLED: SAMPLED_PLAIN}  # mode to compare each mode with


@dataclass
class PromptResult:
    """Runs of one prompt by mode."""

    category: str
    runs: dict[str, list[PromptRun]] = field(default_factory=dict)

    def add(self, mode: str, run: PromptRun) -> None:
        """Add one run."""
        self.runs.setdefault(mode, []).append(run)

    def median_run(self, mode: str) -> PromptRun:
        """Return the run with the median time, the faster of two in the middle."""
        runs = sorted(self.runs[mode], key=lambda run: run.stats.total_ms)
        return runs[(len(runs) - 1) // 2]

    def is_identical(self, plain: str, modes: Sequence[str]) -> bool:
        """Return whether all runs of mode `plain` and of `modes` gave the same tokens."""
        runs = [run for mode in (plain, *modes) for run in self.runs.get(mode, ())]
        return all(run.ids == runs[0].ids for run in runs)


def report(results: Sequence[PromptResult]) -> dict[str, Any]:
    """Return the statistics over one or more prompts as JSON values. Only DRAFTING must have run."""
    modes = dict.fromkeys(mode for prompt in results for mode in prompt.runs)
    drafting = total(results, DRAFTING)
    unbiased = FORCED if FORCED in modes else DRAFTING  # FORCED verifies every draft whole, not only likely tokens
    statistics: dict[str, Any] = {
        "prompts": len(results),
        "tokens": drafting.tokens,
        "identical": identical(results),
        "tok_s": {mode: round(total(results, mode).tokens_per_second, 1) for mode in modes},
        **_over("plain", results, BASELINES),
        "tau": {mode: round(total(results, mode).tau, 3) for mode in DRAFTING_MODES if mode in modes},
        "steps_by_drafter": drafting.steps_by_drafter,
        "dflash_share_of_drafted": _dflash_share(drafting),
        "accept_by_slot": total(results, unbiased).acceptance(),
        "first_token_ms": spread([prompt.median_run(DRAFTING).first_token_ms for prompt in results]),
    }
    if LLAMA in modes:
        statistics |= _over("llama_cpp", results, dict.fromkeys((PLAIN, DRAFTING), LLAMA))
    return statistics


def identical(results: Sequence[PromptResult]) -> dict[str, str]:
    """Return, as `n/prompts`, how many prompts gave the same tokens in every mode: greedy, and sampled with a seed."""
    kinds = {"greedy": (PLAIN, DRAFTING_MODES), SAMPLED: (SAMPLED_PLAIN, (SAMPLED,))}
    counts = {}
    for kind, (plain, modes) in kinds.items():
        ran = [prompt for prompt in results if plain in prompt.runs]
        counts[kind] = f"{sum(prompt.is_identical(plain, modes) for prompt in ran)}/{len(ran)}"
    return counts


def total(results: Sequence[PromptResult], mode: str) -> Stats:
    """Return the summed statistics of one mode over the prompts that ran it."""
    sums = Stats()
    for prompt in results:
        if mode in prompt.runs:
            sums.merge(prompt.median_run(mode).stats)
    return sums


def _over(name: str, results: Sequence[PromptResult], baselines: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the speed of each mode relative to its baseline, by sums and by the median of the prompts.

    Only prompts that ran both modes count; without any, the mode is left out. `name` is a part of the two field names.
    """
    sums, medians = {}, {}
    for mode, baseline in baselines.items():
        if both := [prompt for prompt in results if {mode, baseline} <= prompt.runs.keys()]:
            sums[mode] = round(_rate(both, mode) / _rate(both, baseline), 3)
            medians[mode] = round(median(_rate([prompt], mode) / _rate([prompt], baseline) for prompt in both), 3)
    return {f"over_{name}": sums, f"over_{name}_median": medians}


def _rate(results: Sequence[PromptResult], mode: str) -> float:
    return total(results, mode).tokens_per_second


def _dflash_share(stats: Stats) -> float:
    """Return DFlash's share of the steps that verified a draft."""
    drafted = sum(steps for drafter, steps in stats.steps_by_drafter.items() if drafter != "none")
    return round(stats.steps_by_drafter.get(DFLASH, 0) / drafted, 3) if drafted else 0.0
