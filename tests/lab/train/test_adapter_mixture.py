"""Which package gives how many examples, and which answers are mixed in."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train import adapter_mixture
from localdflash.lab.train.adapter_corpus import Archive
from localdflash.lab.train.adapter_examples import FillExamples
from localdflash.lab.train.adapter_mixture import SHARES, chat_examples, fill_examples
from localdflash.lab.train.kept_answers import COUNT, LIKELY, AnswerWriter
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer
from tests.support.reports import RecordedReport

PYTHON = "def add(first, second):\n    return first + second\n\n\n" * 20
SCRIPT = "export const add = (first, second) => {\n  return first + second\n}\n" * 20
PACKAGES = {"large": {"a.py": PYTHON * 4}, "small": {"b.py": PYTHON}, "script": {"c.js": SCRIPT}}


def test_languages_have_their_shares_and_packages_the_root_of_their_sizes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_mixture, "sources", lambda archive: PACKAGES[archive.path.name])
    drawn = Counter[str]()
    monkeypatch.setattr(FillExamples, "draw", lambda _, name, rng: drawn.update([name]))
    tokenizer = Tokenizer.load(root / "localdflash" / "models" / "embedded" / "target.gguf")
    packages = [Archive(Path(name), False) for name in PACKAGES]
    list(fill_examples(packages, Encoder(tokenizer), detect(tokenizer), 3000, 0, RecordedReport()))
    whole = SHARES["python"] + SHARES["javascript"]
    assert drawn["a.py"] == pytest.approx(3000 * SHARES["python"] / whole * 2 / 3, abs=1)
    assert drawn["b.py"] == pytest.approx(3000 * SHARES["python"] / whole / 3, abs=1)
    assert drawn["c.js"] == pytest.approx(3000 * SHARES["javascript"] / whole, abs=1)


def test_answers_of_one_split_are_mixed_in_up_to_so_many_ids(tmp_path: Path) -> None:
    about = {"sha256": "", "taps": [1], "hidden_size": 2}
    with AnswerWriter(tmp_path, about) as writer:
        for number in range(8):
            record = {"number": number, "kind": 0, "held_out": number % 2, "ended": 0}
            ids = np.full(800 if number == 0 else 10, number, np.uint32)
            writer.add(record, ids, np.zeros((len(ids) - 1, 2), np.float32), np.zeros((4, COUNT), LIKELY))
    found = list(chat_examples(tmp_path, False, 1000, 0))
    assert sorted(one.ids[0] for one in found) == [2, 4, 6]  # what is too long is left out
    assert all((len(one.ids), one.prompt, one.language, one.kind) == (10, 6, "chat", "chat") for one in found)
    assert len(list(chat_examples(tmp_path, True, 15, 0))) == 2
