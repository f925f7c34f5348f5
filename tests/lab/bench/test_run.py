from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats
from localdflash.lab.bench import bench_run as bench
from localdflash.lab.bench import verify_table
from localdflash.lab.bench.bench_run import Category, PromptRun, prompt_ids, run_prompt
from localdflash.lab.bench.lone_row_target import LoneRowTarget
from localdflash.lab.bench.prompt_set import CATEGORIES, BenchPrompt, load
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from tests.support.watched import Watched


def run_of(ids: list[int], *steps: tuple[int, int, float], first: float = 1.0, drafter: str = "dflash") -> PromptRun:
    """A run of steps, each (drafted, accepted, milliseconds)."""
    stats = Stats()
    for drafted, accepted, ms in steps:
        name = drafter if drafted else "none"
        stats.add(Step([0] * (accepted + 1), name, drafted, accepted, 0.1, ms - 0.2), ms)
    return PromptRun(ids, stats, first)


PLAIN = (0, 0, 10.0)


# What a category reports


def test_rates_and_speedup_are_ratios_of_sums() -> None:
    category = Category()
    category.add([run_of([1], PLAIN, PLAIN)], [run_of([1], (3, 1, 10.0))])
    category.add([run_of([2], *[PLAIN] * 8)], [run_of([2], (3, 3, 15.0), (3, 3, 15.0))])
    report = category.report(0.0)
    assert report["prompts"] == 2
    assert report["tokens"] == 10
    assert report["ar_tok_s"] == 100.0
    assert report["tok_s"] == 250.0  # 10 tokens in 40 ms
    assert report["speedup"] == 2.5
    assert report["tau"] == pytest.approx(10 / 3, abs=1e-3)
    assert report["accept_by_slot"] == [1.0, pytest.approx(2 / 3, abs=1e-3), pytest.approx(2 / 3, abs=1e-3)]
    assert report["steps_by_drafter"] == {"dflash": 3}


def test_the_fastest_repeat_counts() -> None:
    category = Category()
    category.add(
        [run_of([1], (0, 0, 30.0)), run_of([1], (0, 0, 10.0)), run_of([1], (0, 0, 20.0))],
        [run_of([1], (0, 0, 9.0), first=5.0), run_of([1], (0, 0, 5.0), first=7.0)],
    )
    report = category.report(0.0)
    assert (report["ar_tok_s"], report["tok_s"]) == (100.0, 200.0)
    assert report["ttft_ms"] == {"p50": 7.0, "p95": 7.0}


@pytest.mark.parametrize(
    ("plain", "drafted", "identical"),
    [
        ([[1, 2], [1, 2]], [[1, 2], [1, 3]], "0/1"),
        ([[1, 2], [1, 3]], [[1, 2], [1, 2]], "0/1"),
        ([[1, 2]], [[1]], "0/1"),
    ],
)
def test_every_run_counts_for_identity(plain: list[list[int]], drafted: list[list[int]], identical: str) -> None:
    category = Category()
    category.add([run_of(ids, PLAIN) for ids in plain], [run_of(ids, PLAIN) for ids in drafted])
    assert category.report(0.0)["identical"] == identical


# Prompts and runs


@pytest.fixture(scope="module")
def loaded(tiny_pair: Path) -> Iterator[LoadedPair]:
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), threads=1, backend="llama.cpp")) as loaded:
        yield loaded


def test_every_run_is_cold(loaded: LoadedPair) -> None:
    prompt = BenchPrompt("x/0", "prose", "", 16, question="What is zip?")
    ids, ends = prompt_ids(loaded, prompt)
    computed = []
    original = loaded.pair.prefill

    def prefill(*arguments: Any) -> int:
        computed.append(original(*arguments))
        return computed[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded.pair, "prefill", prefill)
        runs = [run_prompt(loaded.pair, ids, ends, 16) for _ in range(2)]
    assert computed == [len(ids) - 1] * 2
    assert runs[0].ids == runs[1].ids
    assert len(runs[0].ids) == runs[0].stats.tokens <= 16
    assert runs[0].first_token_ms > 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small prompts, and answers of at most eight tokens."""

    def shortened(limit: int | None) -> list[BenchPrompt]:
        return [
            replace(prompt, max_tokens=8, prefix=prompt.prefix[-60:], suffix="\n", question=prompt.question[:60])
            for prompt in load(limit)
        ]

    monkeypatch.setattr(bench, "load", shortened)


@pytest.mark.nightly
@pytest.mark.usefixtures("short")
def test_ways_take_turns_at_going_first(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = ""
    original = bench.run_prompt

    def recording(pair: Any, *arguments: Any) -> PromptRun:
        nonlocal order
        order += "d" if pair.controller else "l" if isinstance(pair.target, LoneRowTarget) else "p"
        return original(pair, *arguments)

    monkeypatch.setattr(bench, "run_prompt", recording)
    monkeypatch.setattr(bench, "_other_plain", lambda *_arguments: {})
    monkeypatch.setattr(bench, "_acceptance", lambda *_arguments: {})
    monkeypatch.setattr(verify_table, "SECONDS", 0.0)
    watcher = Watched()
    result = bench.run(Options(str(tiny_pair / "target.gguf"), threads=1, backend="llama.cpp"), 1, 2, watcher)
    assert order == "pdl dlp dlp lpd lpd pdl pdl dlp dlp lpd".replace(" ", "")
    steps = [what for _, what in watcher.parts]
    assert (steps[0], steps[4]) == ("1/5 fim_line/00", "5/5 prose/00")
    assert "5 prompts, 3 modes interleaved, 2 times" in watcher.line
    assert 0 < sum(seconds for seconds, _ in watcher.parts) <= watcher.planned
    assert result["overall"]["identical"] == "5/5"
    assert list(result["categories"]) == list(CATEGORIES)
    assert result["overall"]["ar_over_llama_cpp_ar"] > 0
    assert result["verify"]["over_ar"][8] > 0


# The machine
