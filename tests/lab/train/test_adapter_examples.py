"""FIM examples equal the prompts of completions, followed by the missing text."""

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS, Gap
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.train import adapter_corpus, adapter_examples, adapter_mixture
from localdflash.lab.train.adapter_corpus import Archive
from localdflash.lab.train.adapter_examples import CONTEXT, FimExampleSampler
from localdflash.lab.train.adapter_gaps import GapSampler, TrainingGap
from localdflash.lab.train.completion_prompts import of_corpus
from localdflash.lab.train.questions import Question
from localdflash.lab.train.training_prompts import HELD_OUT_EVERY
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.support.reports import RecordedReport

CODE = """from shop.prices import with_tax


def total(items: list[int], rate: float) -> int:
    found = 0
    for item in items:
        found += with_tax(item, rate)
    return found
"""
PRICES = "def with_tax(price: int, rate: float) -> int:\n    return round(price * (1 + rate))\n"
TEXTS = {"shop/orders.py": CODE, "shop/prices.py": PRICES}
ROOM = 448
TARGET = Path(adapter_examples.__file__).parents[2] / "localdflash" / "models" / "embedded" / "target.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TARGET)


@pytest.fixture
def maker(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[FimExampleSampler]:
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    maker = FimExampleSampler(Encoder(tokenizer), detect(tokenizer), tmp_path, TEXTS)
    yield maker
    maker.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make examples depend only on the gap."""
    for name in ("OTHER_CODE_SHARE", "EDITS_SHARE", "UNHEALED_SHARE"):
        monkeypatch.setattr(adapter_examples, name, 0.0)
    monkeypatch.setattr(adapter_examples, "FORMAT_ORDER_SHARE", 1.0)
    monkeypatch.setattr(adapter_examples, "PROMPTS", {ROOM: 1.0})


def completion_prompt(tokenizer: Tokenizer, before: str, after: str) -> tuple[list[int], str]:
    """Return the prompt of a completion, and the word that is healed."""
    loaded: Any = SimpleNamespace(
        tokenizer=tokenizer,
        fim_format=lambda: detect(tokenizer),
        vocab_size=tokenizer.vocab_size,
        context=CONTEXT,
        before_close=lambda _: None,
    )
    gap = Gap("shop/orders.py", "python", before, "", after)
    filling = InfillPlanner(loaded, patience=None).plan(
        gap, max_tokens=MIN_ANSWER_TOKENS, params=SamplingParams(), max_prompt_tokens=ROOM
    )
    return filling.prompt.ids, filling.word


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("missing", ["found = 0", "tems:", " rate"])
def test_the_prompt_equals_that_of_a_completion(
    maker: FimExampleSampler, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    start = CODE.rindex(missing)
    gap = TrainingGap("node", start, start + len(missing))
    monkeypatch.setattr(GapSampler, "sample", lambda *_: gap)
    example = maker.sample("shop/orders.py", random.Random(0))
    prompt, word = completion_prompt(tokenizer, CODE[:start], CODE[start + len(missing) :])
    ids = example.ids.tolist()
    assert ids[: len(prompt)] == prompt
    assert tokenizer.spell(ids[len(prompt) :]).decode() == word + missing
    assert ids[-1] == tokenizer.special("<|endoftext|>")
    middle = tokenizer.special("<|fim_middle|>")
    assert ids.index(middle) == example.prompt - 1
    assert ids.count(middle) == 1


STEPS = "".join(
    f"def step_{n}(value: int, other: int) -> int:\n    first = value + {n}\n    second = first * other\n"
    f"    return first - second\n\n\n"
    for n in range(12)
)


def test_whole_packages_are_held_out_and_answers_mixed_in(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = {"learned": {"learned.py": STEPS}, "kept": {"kept.py": STEPS.replace("step_", "keep_")}}
    archives = [Archive(Path(name), name == "kept") for name in packages]
    monkeypatch.setattr(adapter_corpus, "fetch_archives", lambda _: archives)
    monkeypatch.setattr(adapter_mixture, "read_sources", lambda archive: packages[archive.path.name])

    def made() -> list[Question]:
        return list(of_corpus(tmp_path, TARGET, detect(tokenizer), 3000, 5, RecordedReport()))

    found = made()
    assert found == made()
    assert len(found) > HELD_OUT_EVERY
    assert [number for number, one in enumerate(found[:30]) if one.held_out] == [HELD_OUT_EVERY - 1]
    for one in found:
        text = tokenizer.spell(one.ids).decode(errors="replace")
        assert "keep_" not in text or one.held_out
        assert "step_" not in text or not one.held_out
