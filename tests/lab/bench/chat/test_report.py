"""Reports of the chat benchmark: sums, medians, identity, shares."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from localdflash.engine import host_pair
from localdflash.engine.draft import Draft
from localdflash.engine.host_pair import HostPair
from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import PromptRun
from localdflash.lab.bench.chat import daemon_ttft, distribution
from localdflash.lab.bench.chat.chat_modes import Hosts
from localdflash.lab.bench.chat.chat_run import _reports
from localdflash.lab.bench.chat.measuring import ChatBench
from localdflash.lab.bench.chat.report import PromptResult, report
from localdflash.server.engine_spec import EngineSpec
from tests.support import daemons

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


def test_modes_without_runs_are_left_out() -> None:
    prompt = PromptResult("talk", {mode: [run_of([1], PLAIN)] for mode in ("plain", "drafting", "sampled")})
    found = report([prompt])
    assert found["over_plain"] == found["over_plain_median"] == {"drafting": 1.0}


@pytest.mark.parametrize("way", ["drafting", "forced"])
def test_every_drafting_mode_counts_for_identity(way: str) -> None:
    ways = dict.fromkeys(("drafting", "dflash", "lookup", "forced"), run_of([1], PLAIN))
    prompt = pair_of(run_of([1], PLAIN), **ways | {way: run_of([2], PLAIN)})
    assert report([prompt])["identical"] == {"greedy": "0/1", "sampled": "1/1"}


def test_without_other_backends_the_baseline_is_the_best() -> None:
    prompts = [pair_of(run_of([1], PLAIN, PLAIN), drafting=run_of([1], (3, 1, 10.0, "dflash")))]
    found = _reports(cast(ChatBench, SimpleNamespace(results=prompts, measurements={})))["overall"]
    assert found["over_best_plain"] == found["over_plain"]["drafting"] == 2.0


Make = Callable[..., Any]
TABLE = np.random.default_rng(0).normal(0, 1.0, (4, 4, 4)).astype(np.float32)
PROMPTS = [[2, 1], [0, 3, 3]]


@pytest.fixture
def hosts(fake_target: Make, fake_drafter: Make, eager: Make) -> Hosts:
    """Return a pair that drafts the target's likeliest tokens, and the target alone."""

    def likeliest(ids: list[int], limit: int) -> tuple[list[int], list[float]]:
        found = list(ids)
        for _ in range(limit):
            found.append(int(TABLE[found[-2], found[-1]].argmax()))
        return found[len(ids) :], [1.0] * limit

    drafting = HostPair(fake_target(TABLE), [fake_drafter("x", likeliest)], eager("x"))
    return Hosts(drafting, HostPair(fake_target(TABLE)))


def test_drafting_samples_from_the_targets_distribution(hosts: Hosts) -> None:
    usual, moved = hosts.drafting.controller, []
    found = distribution.check(hosts, PROMPTS, 0.7, 800, lambda: moved.append(1))
    assert found["p_value"] > 0.01
    assert found["draws"] == 1600
    assert 0 < found["drafted_tokens_drawn"] < 1600
    assert len(moved) == 2
    assert hosts.drafting.controller is usual
    assert hosts.drafting.ids == hosts.plain.ids == []


def test_a_lossy_acceptance_fails_the_test(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(draft: Draft, logits: Any, sampler: Any, ids: Any, limit: int, ends: Any) -> list[int]:
        if draft and sampler._random.random() < 0.5:  # takes the likeliest token in place of a draw
            return [draft.tokens[0]]
        return [sampler.sample(logits[0], [])]

    monkeypatch.setattr(host_pair, "accept", lossy)
    assert distribution.check(hosts, PROMPTS, 0.7, 800)["p_value"] < 1e-4


@pytest.mark.system
def test_a_private_daemon_is_started_measured_and_stopped(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    with daemons.short_home(monkeypatch) as folder:
        spec = EngineSpec({"pair": str(tiny_pair / "target.gguf"), "backend": "llama.cpp", "threads": 1})
        found = daemon_ttft.measure(spec, 2, 3, lambda: moved.append(1))
        assert daemons.daemons(folder) == []
    assert found["cold_start_ms"]["p50"] > found["warm_ms"]["p50"] > 0
    assert found["typed_ms"]["p50"] > 0
    assert found["question_tokens"] <= 100
    assert len(moved) == 5
