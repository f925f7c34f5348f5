"""Examples are the prompts that a completion is asked with, followed by what is missing."""

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
from localdflash.lab.train import adapter_examples
from localdflash.lab.train.adapter_examples import CONTEXT, FillExamples
from localdflash.lab.train.adapter_holes import Holes, TrainingHole
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer

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


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(
        Path(adapter_examples.__file__).parents[2] / "localdflash" / "models" / "embedded" / "target.gguf"
    )


@pytest.fixture
def maker(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[FillExamples]:
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    maker = FillExamples(Encoder(tokenizer), detect(tokenizer), tmp_path, TEXTS)
    yield maker
    maker.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples without any choice but that of the hole."""
    for name in ("WITH_OTHERS", "WITH_EDITS", "UNHEALED"):
        monkeypatch.setattr(adapter_examples, name, 0.0)
    monkeypatch.setattr(adapter_examples, "FIRST_ORDER", 1.0)
    monkeypatch.setattr(adapter_examples, "PROMPTS", {ROOM: 1.0})


def asked(tokenizer: Tokenizer, before: str, after: str) -> tuple[list[int], str]:
    """The ids that a completion is asked with, and the word that it is made to begin with."""
    loaded: Any = SimpleNamespace(
        tokenizer=tokenizer,
        fim_format=lambda: detect(tokenizer),
        vocab_size=tokenizer.vocab_size,
        context=CONTEXT,
        before_close=lambda _: None,
    )
    hole = Gap("shop/orders.py", "python", before, "", after)
    filling = InfillPlanner(loaded, patience=None).fill(
        hole, max_tokens=MIN_ANSWER_TOKENS, params=SamplingParams(), most=ROOM
    )
    return filling.prompt.ids, filling.word


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("missing", ["found = 0", "tems:", " rate"])
def test_the_prompt_is_the_one_that_is_asked(
    maker: FillExamples, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    start = CODE.rindex(missing)
    hole = TrainingHole("node", start, start + len(missing))
    monkeypatch.setattr(Holes, "draw", lambda *_: hole)
    example = maker.draw("shop/orders.py", random.Random(0))
    prompt, word = asked(tokenizer, CODE[:start], CODE[start + len(missing) :])
    assert example.ids[: len(prompt)] == prompt
    assert tokenizer.spell(example.ids[len(prompt) :]).decode() == word + missing
    assert example.ids[-1] == tokenizer.special("<|endoftext|>")
    middle = tokenizer.special("<|fim_middle|>")
    assert example.ids.index(middle) == example.prompt - 1
    assert example.ids.count(middle) == 1
