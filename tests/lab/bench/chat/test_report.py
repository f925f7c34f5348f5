"""Reports of the chat benchmark: sums, medians, identity, shares."""

from types import SimpleNamespace
from typing import cast

import pytest

from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import PromptRun
from localdflash.lab.bench.chat.chat_run import _reports
from localdflash.lab.bench.chat.measuring import ChatBench
from localdflash.lab.bench.chat.report import PromptResult, report

PLAIN = (0, 0, 10.0, "none")


def run_of(ids: list[int], *steps: tuple[int, int, float, str]) -> PromptRun:
    """Return a run of steps, each (drafted, accepted, milliseconds, drafter)."""
    stats = Stats()
    for drafted, accepted, ms, drafter in steps:
        stats.add(Step([0] * (accepted + 1), drafter, drafted, accepted, 0.1, ms - 0.2), ms)
    return PromptRun(ids, stats, 1.0)


def pair_of(plain: PromptRun, **drafting: PromptRun) -> PromptResult:
    prompt, sampled = PromptResult("talk"), run_of([7], PLAIN)
    for mode, run in {"plain": plain, **drafting, "sampled plain": sampled, "sampled": sampled}.items():
        prompt.add(mode, run)
    return prompt


def test_ratios_are_of_sums_and_of_the_median_prompt() -> None:
    found = report(
        [
            pair_of(run_of([1], PLAIN, PLAIN), drafting=run_of([1], (3, 1, 10.0, "dflash"))),  # twice as fast
            pair_of(run_of([2], *[PLAIN] * 8), drafting=run_of([2], *[(3, 3, 10.0, "lookup")] * 2)),  # four times
            pair_of(run_of([3], PLAIN), drafting=run_of([3], (0, 0, 10.0, "none"))),  # as fast
        ]
    )
    assert (found["prompts"], found["tokens"]) == (3, 11)
    assert found["tok_s"]["plain"] == 100.0
    assert found["tok_s"]["drafting"] == 275.0  # 11 tokens in 40 ms
    assert found["over_plain"]["drafting"] == 2.75
    assert found["over_plain_median"]["drafting"] == 2.0
    assert found["over_plain"]["sampled"] == 1.0
    assert found["tau"] == {"drafting": 2.75}
    assert found["steps_by_drafter"] == {"dflash": 1, "lookup": 2, "none": 1}
    assert found["dflash_share_of_drafted"] == pytest.approx(1 / 3, abs=1e-3)
    assert found["identical"] == {"greedy": "3/3", "sampled": "3/3"}
    assert "over_llama_cpp" not in found


@pytest.mark.parametrize("way", ["drafting", "forced"])
def test_every_drafting_mode_counts_for_identity(way: str) -> None:
    ways = dict.fromkeys(("drafting", "dflash", "lookup", "forced"), run_of([1], PLAIN))
    prompt = pair_of(run_of([1], PLAIN), **ways | {way: run_of([2], PLAIN)})
    assert report([prompt])["identical"] == {"greedy": "0/1", "sampled": "1/1"}


def test_without_other_backends_the_baseline_is_the_best() -> None:
    prompts = [pair_of(run_of([1], PLAIN, PLAIN), drafting=run_of([1], (3, 1, 10.0, "dflash")))]
    found = _reports(cast(ChatBench, SimpleNamespace(results=prompts, measurements={})))["overall"]
    assert found["over_best_plain"] == found["over_plain"]["drafting"] == 2.0
