"""What a target that completes code is asked: the prompts of an editor, several in each hole."""

from pathlib import Path

import pytest

from localdflash.lab.train import adapter_corpus, adapter_examples, adapter_mixture
from localdflash.lab.train.adapter_corpus import Archive
from localdflash.lab.train.completion_prompts import of_corpus
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
TARGET = Path(adapter_examples.__file__).parents[2] / "localdflash" / "models" / "embedded" / "target.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(TARGET)


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
