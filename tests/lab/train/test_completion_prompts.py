"""What a target that completes code is asked: the prompts of an editor, several in each hole."""

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS, Gap
from localdflash.engine.common_prefix import count_common_prefix
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.train import adapter_corpus, adapter_examples, adapter_mixture, completion_prompts
from localdflash.lab.train.adapter_corpus import Archive
from localdflash.lab.train.adapter_examples import CONTEXT, FillExamples
from localdflash.lab.train.adapter_holes import Holes, TrainingHole
from localdflash.lab.train.completion_prompts import of_corpus, questions_of_hole
from localdflash.lab.train.questions import Question
from localdflash.lab.train.training_prompts import HELD_OUT_EVERY
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.support.reports import RecordedReport

CODE = "".join(
    f"def step_{n}(value: int, other: int) -> int:\n    first = value + {n}\n    second = first * other\n"
    f"    return first - second\n\n\n"
    for n in range(12)
)
TEXTS = {"shop/steps.py": CODE}
TARGET = Path(adapter_examples.__file__).parents[2] / "localdflash" / "models" / "embedded" / "target.gguf"
ROOM = 448


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TARGET)


@pytest.fixture
def maker(tokenizer: Tokenizer, tmp_path: Path) -> Iterator[FillExamples]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "steps.py").write_text(CODE)
    maker = FillExamples(Encoder(tokenizer), detect(tokenizer), tmp_path, TEXTS)
    yield maker
    maker.close()


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts without any choice but that of the cursors."""
    for name in ("WITH_OTHERS", "WITH_EDITS", "UNHEALED"):
        monkeypatch.setattr(adapter_examples, name, 0.0)
    monkeypatch.setattr(completion_prompts, "PROMPTS", {ROOM: 1.0})


def asked(tokenizer: Tokenizer, before: str, after: str) -> list[int]:
    """The ids that a completion is asked with."""
    loaded: Any = SimpleNamespace(
        tokenizer=tokenizer,
        fim_format=lambda: detect(tokenizer),
        vocab_size=tokenizer.vocab_size,
        context=CONTEXT,
        before_close=lambda _: None,
    )
    hole = Gap("shop/steps.py", "python", before, "", after)
    return (
        InfillPlanner(loaded, patience=None)
        .fill(hole, max_tokens=MIN_ANSWER_TOKENS, params=SamplingParams(), most=ROOM)
        .prompt.ids
    )


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("kind", ["node", "open"])
def test_the_prompts_are_those_of_an_editor_while_a_hole_is_typed(
    kind: str, maker: FillExamples, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hole = TrainingHole(kind, CODE.index("first = value + 3"), CODE.index("def step_8"))
    monkeypatch.setattr(Holes, "draw", lambda *_: hole)
    places = [hole.start, hole.start + 25, hole.start + 66, hole.start + 160]
    monkeypatch.setattr(completion_prompts, "cursors", lambda *_: places)
    found = questions_of_hole(maker, "shop/steps.py", random.Random(0))
    after = "" if hole.is_open else CODE[hole.end :]
    for question, cursor in zip(found, places, strict=True):
        assert list(question.ids) == asked(tokenizer, CODE[:cursor], after)
        assert (question.kind, question.text, question.held_out) == (kind, "", False)
    for first, second in pairwise(found):
        assert count_common_prefix(first.ids, second.ids) > 0.7 * len(first.ids)


def test_whole_packages_are_held_out_and_mixed_in(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages = {"learned": {"learned.py": CODE}, "kept": {"kept.py": CODE.replace("step_", "keep_")}}
    archives = [Archive(Path(name), name == "kept") for name in packages]
    monkeypatch.setattr(adapter_corpus, "archives", lambda _: archives)
    monkeypatch.setattr(adapter_mixture, "sources", lambda archive: packages[archive.path.name])

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
