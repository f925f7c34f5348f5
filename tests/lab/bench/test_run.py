import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as api
import pytest

from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats
from localdflash.lab.bench import prompt_set
from localdflash.lab.bench.bench_run import CategoryRuns, PromptRun, report_overall
from localdflash.lab.bench.chat import chat_prompts
from localdflash.lab.bench.single_token_target import SingleTokenTarget
from localdflash.lab.train.questions import QUESTION_LIST


def run_of(ids: list[int], *steps: tuple[int, int, float]) -> PromptRun:
    """Return a run of steps, each (drafted, accepted, milliseconds)."""
    stats = Stats()
    for drafted, accepted, ms in steps:
        stats.add(Step([0] * (accepted + 1), "dflash" if drafted else "none", drafted, accepted, 0.1, ms - 0.2), ms)
    return PromptRun(ids, stats, 1.0)


PLAIN = (0, 0, 10.0)


def test_rates_and_speedup_are_ratios_of_sums() -> None:
    category = CategoryRuns()
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


def test_the_best_other_backend_counts_overall_too() -> None:
    code, prose = CategoryRuns(), CategoryRuns()
    code.add([run_of([1], *[PLAIN] * 6)], [run_of([1], *[PLAIN] * 6)])
    prose.add([run_of([2], *[PLAIN] * 2)], [run_of([2], *[PLAIN] * 2)])
    categories: dict[prompt_set.Category, CategoryRuns] = {"function": code, "prose": prose}
    assert (
        report_overall(categories, {"function": 300.0, "prose": 200.0})["best_ar_tok_s"] == 266.7
    )  # 8 tokens in 30 ms
    assert report_overall(categories, {"function": 300.0})["best_ar_tok_s"] == 100.0  # not measured everywhere


@pytest.mark.parametrize(
    ("plain", "drafted", "identical"),
    [
        ([[1, 2], [1, 2]], [[1, 2], [1, 3]], "0/1"),
        ([[1, 2], [1, 3]], [[1, 2], [1, 2]], "0/1"),
        ([[1, 2]], [[1]], "0/1"),
    ],
)
def test_every_run_counts_for_identity(plain: list[list[int]], drafted: list[list[int]], identical: str) -> None:
    category = CategoryRuns()
    category.add([run_of(ids, PLAIN) for ids in plain], [run_of(ids, PLAIN) for ids in drafted])
    assert category.report(0.0)["identical"] == identical


def test_the_llama_cpp_baseline_decodes_single_token_batches(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    original = api.llama_decode

    def counting(handle: object, batch: api.llama_batch) -> int:
        rows.append(batch.n_tokens)
        return int(original(handle, batch))

    monkeypatch.setattr(api, "llama_decode", counting)
    logits = []
    for kind in (LlamaCppTarget, SingleTokenTarget):
        target = kind(tiny_pair / "target.gguf", 64, 1)
        target.extend([5, 6, 7])
        logits.append(target.verify(8, EMPTY_DRAFT).logits[0].copy())
        target.keep(1)
        assert target.length == 4
        target.close()
    assert rows == [3, 2, 3, 1]
    assert float((logits[0] - logits[1]).std()) < 0.1 * float(logits[0].std())


PROMPTS = chat_prompts.load()


# Hashes of the whole sets. A change of the prompts makes earlier results incomparable.
@pytest.mark.parametrize(
    ("prompts", "golden"),
    [
        (prompt_set.load(), "a6eb64accb67a14210f91d09354fd81883ecd22ad9e230e8c0bd3de6914839c1"),
        (PROMPTS, "8246f5d7a7b3bb2c9d6ee935c7bd1ea5846b0417d3754487297c38870208552d"),
    ],
    ids=["code", "chat"],
)
def test_the_prompt_set_has_its_hash(prompts: Sequence[Any], golden: str) -> None:
    text = json.dumps([asdict(prompt) for prompt in prompts], sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest() == golden


@pytest.mark.parametrize("kind", ["talk", "json"])
def test_bench_questions_have_no_training_subject(kind: str) -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    subjects = {s.lower() for family in families if family["kind"] == kind for s in family["subjects"]}
    for prompt in (each for each in PROMPTS if each.category == kind):
        question = prompt.question.lower()
        assert [s for s in subjects if re.search(rf"(?<!\w){re.escape(s)}(?!\w)", question)] == []


def test_bench_questions_match_no_training_pattern() -> None:
    families = tomllib.loads(QUESTION_LIST.read_text())["family"]
    trained = {p.format(s) for family in families for p in family["patterns"] for s in family["subjects"]}
    assert not trained & {prompt.question for prompt in PROMPTS}
