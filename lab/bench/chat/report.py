"""Statistics of the chat benchmark's runs: rates and their ratios, identity, acceptance.

A rate is tokens over milliseconds, both summed over prompts, prefill excluded. Of repeats the median counts. For each
ratio of rates there is also the median of the ratios per prompt, which is robust against disturbances.
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
DRAFTS = (DRAFTING, DFLASH, LOOKUP, FORCED)  # modes whose greedy text must be identical to the baseline's


@dataclass
class PromptResult:
    """Prompt with its runs by mode."""

    category: str
    runs: dict[str, list[PromptRun]] = field(default_factory=dict)

    def add(self, mode: str, run: PromptRun) -> None:
        """Add one run."""
        self.runs.setdefault(mode, []).append(run)

    def run(self, mode: str) -> PromptRun:
        """Return the run with the median time."""
        runs = sorted(self.runs[mode], key=lambda run: run.stats.total_ms)
        return runs[(len(runs) - 1) // 2]

    def same(self, plain: str, modes: Sequence[str]) -> bool:
        """Return whether every run of these modes gave the tokens of the baseline."""
        runs = [run for mode in (plain, *modes) for run in self.runs.get(mode, ())]
        return all(run.ids == runs[0].ids for run in runs)


def report(results: Sequence[PromptResult]) -> dict[str, Any]:
    """Return the statistics of some prompts, at least one; modes without runs are left out."""
    modes = dict.fromkeys(mode for prompt in results for mode in prompt.runs)
    drafting = total(results, DRAFTING)
    found: dict[str, Any] = {
        "prompts": len(results),
        "tokens": drafting.tokens,
        "identical": identical(results),
        "tok_s": {mode: round(total(results, mode).tokens_per_second, 1) for mode in modes},
        **_over("plain", results, {mode: PLAIN for mode in DRAFTS if mode in modes} | {SAMPLED: SAMPLED_PLAIN}),
        "tau": {mode: round(total(results, mode).tau, 3) for mode in DRAFTS if mode in modes},
        "steps_by_drafter": drafting.steps_by_drafter,
        "dflash_share_of_drafted": _share(drafting),
        "accept_by_slot": total(results, FORCED if FORCED in modes else DRAFTING).acceptance(),
        "first_token_ms": spread([prompt.run(DRAFTING).first_token_ms for prompt in results]),
    }
    if LLAMA in modes:
        found |= _over("llama_cpp", results, dict.fromkeys((PLAIN, DRAFTING), LLAMA))
    return found


def identical(results: Sequence[PromptResult]) -> dict[str, str]:
    """Return how many prompts gave the same tokens in every mode, greedy and with a seed."""
    kinds = {"greedy": (PLAIN, DRAFTS), SAMPLED: (SAMPLED_PLAIN, (SAMPLED,))}
    counts = {}
    for kind, (plain, modes) in kinds.items():
        ran = [prompt for prompt in results if plain in prompt.runs]
        counts[kind] = f"{sum(prompt.same(plain, modes) for prompt in ran)}/{len(ran)}"
    return counts


def total(results: Sequence[PromptResult], mode: str) -> Stats:
    """Return the sums of one mode over its prompts."""
    sums = Stats()
    for prompt in results:
        if mode in prompt.runs:
            sums.merge(prompt.run(mode).stats)
    return sums


def _over(name: str, results: Sequence[PromptResult], bases: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the speed of modes relative to others, over the prompts that both ran: by sums, and by the median."""
    sums, medians = {}, {}
    for mode, base in bases.items():
        both = [prompt for prompt in results if {mode, base} <= prompt.runs.keys()]
        sums[mode] = round(_rate(both, mode) / _rate(both, base), 3)
        medians[mode] = round(median(_rate([prompt], mode) / _rate([prompt], base) for prompt in both), 3)
    return {f"over_{name}": sums, f"over_{name}_median": medians}


def _rate(results: Sequence[PromptResult], mode: str) -> float:
    return total(results, mode).tokens_per_second


def _share(stats: Stats) -> float:
    """Return DFlash's share of the steps that verified a draft."""
    drafted = sum(steps for drafter, steps in stats.steps_by_drafter.items() if drafter != "none")
    return round(stats.steps_by_drafter.get(DFLASH, 0) / drafted, 3) if drafted else 0.0
