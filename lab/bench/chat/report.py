"""Statistics of the chat benchmark's runs: rates and their ratios, identity, acceptance.

A rate is tokens over milliseconds, both summed over prompts, prefill excluded. Of repeats the median counts. Next to a
ratio of rates stands the median of the prompts' own ratios, which a disturbed moment does not move.
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
DRAFTS = (DRAFTING, DFLASH, LOOKUP, FORCED)  # ways whose greedy text must be that of plain decoding


@dataclass
class AskedPrompt:
    """Prompt with its runs by mode."""

    category: str
    runs: dict[str, list[PromptRun]] = field(default_factory=dict)

    def add(self, way: str, run: PromptRun) -> None:
        """Add one run."""
        self.runs.setdefault(way, []).append(run)

    def run(self, way: str) -> PromptRun:
        """Return the run with the median time."""
        runs = sorted(self.runs[way], key=lambda run: run.stats.total_ms)
        return runs[(len(runs) - 1) // 2]

    def same(self, plain: str, ways: Sequence[str]) -> bool:
        """Return whether every run of these modes gave the tokens of the baseline."""
        runs = [run for way in (plain, *ways) for run in self.runs.get(way, ())]
        return all(run.ids == runs[0].ids for run in runs)


def report(asked: Sequence[AskedPrompt]) -> dict[str, Any]:
    """Return the statistics of some prompts, at least one; modes without runs are left out."""
    ways = dict.fromkeys(way for prompt in asked for way in prompt.runs)
    drafting = total(asked, DRAFTING)
    found: dict[str, Any] = {
        "prompts": len(asked),
        "tokens": drafting.tokens,
        "identical": identical(asked),
        "tok_s": {way: round(total(asked, way).tokens_per_second, 1) for way in ways},
        **_over("plain", asked, {way: PLAIN for way in DRAFTS if way in ways} | {SAMPLED: SAMPLED_PLAIN}),
        "tau": {way: round(total(asked, way).tau, 3) for way in DRAFTS if way in ways},
        "steps_by_drafter": drafting.steps_by_drafter,
        "dflash_share_of_drafted": _share(drafting),
        "accept_by_slot": total(asked, FORCED if FORCED in ways else DRAFTING).acceptance(),
        "first_token_ms": spread([prompt.run(DRAFTING).first_token_ms for prompt in asked]),
    }
    if LLAMA in ways:
        found |= _over("llama_cpp", asked, dict.fromkeys((PLAIN, DRAFTING), LLAMA))
    return found


def identical(asked: Sequence[AskedPrompt]) -> dict[str, str]:
    """Return how many prompts gave the same tokens in every mode, greedy and with a seed."""
    kinds = {"greedy": (PLAIN, DRAFTS), SAMPLED: (SAMPLED_PLAIN, (SAMPLED,))}
    counts = {}
    for kind, (plain, ways) in kinds.items():
        ran = [prompt for prompt in asked if plain in prompt.runs]
        counts[kind] = f"{sum(prompt.same(plain, ways) for prompt in ran)}/{len(ran)}"
    return counts


def total(asked: Sequence[AskedPrompt], way: str) -> Stats:
    """Return the sums of one mode over its prompts."""
    sums = Stats()
    for prompt in asked:
        if way in prompt.runs:
            sums.merge(prompt.run(way).stats)
    return sums


def _over(name: str, asked: Sequence[AskedPrompt], bases: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the speed of modes relative to others, over the prompts that both ran: by sums, and by the median."""
    sums, medians = {}, {}
    for way, base in bases.items():
        both = [prompt for prompt in asked if {way, base} <= prompt.runs.keys()]
        sums[way] = round(_rate(both, way) / _rate(both, base), 3)
        medians[way] = round(median(_rate([prompt], way) / _rate([prompt], base) for prompt in both), 3)
    return {f"over_{name}": sums, f"over_{name}_median": medians}


def _rate(asked: Sequence[AskedPrompt], way: str) -> float:
    return total(asked, way).tokens_per_second


def _share(stats: Stats) -> float:
    """Return DFlash's share of the steps that verified a draft."""
    drafted = sum(steps for drafter, steps in stats.steps_by_drafter.items() if drafter != "none")
    return round(stats.steps_by_drafter.get(DFLASH, 0) / drafted, 3) if drafted else 0.0
