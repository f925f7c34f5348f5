from collections.abc import Iterator
from pathlib import Path

import llama_cpp.llama_cpp as api
import pytest

from localdflash.backends.llamacpp.llama_target import LlamaCppTarget
from localdflash.engine.draft import EMPTY_DRAFT
from localdflash.engine.pair import Step
from localdflash.engine.stats import Stats
from localdflash.lab.bench.bench_run import Category, PromptRun
from localdflash.lab.bench.lone_row_target import LoneRowTarget
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options


def run_of(ids: list[int], *steps: tuple[int, int, float], first: float = 1.0, drafter: str = "dflash") -> PromptRun:
    """A run of steps, each (drafted, accepted, milliseconds)."""
    stats = Stats()
    for drafted, accepted, ms in steps:
        name = drafter if drafted else "none"
        stats.add(Step([0] * (accepted + 1), name, drafted, accepted, 0.1, ms - 0.2), ms)
    return PromptRun(ids, stats, first)


PLAIN = (0, 0, 10.0)


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


@pytest.fixture(scope="module")
def loaded(tiny_pair: Path) -> Iterator[LoadedPair]:
    with LoadedPair(Options(str(tiny_pair / "target.gguf"), threads=1, backend="llama.cpp")) as loaded:
        yield loaded


def test_a_lone_row_is_decoded_alone(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    original = api.llama_decode

    def counting(handle: object, batch: api.llama_batch) -> int:
        rows.append(batch.n_tokens)
        return int(original(handle, batch))

    monkeypatch.setattr(api, "llama_decode", counting)
    logits = []
    for kind in (LlamaCppTarget, LoneRowTarget):
        target = kind(tiny_pair / "target.gguf", 64, 1)
        target.extend([5, 6, 7])
        logits.append(target.verify(8, EMPTY_DRAFT).logits[0].copy())
        target.keep(1)
        assert target.length == 4
        target.close()
    assert rows == [3, 2, 3, 1]
    assert float((logits[0] - logits[1]).std()) < 0.1 * float(logits[0].std())
