"""General questions and questions about code."""

import random
from pathlib import Path

import pytest

from localdflash.base.errors import TrainingError
from localdflash.lab.train import corpus, training_prompts
from localdflash.lab.train.questions import Question, questions
from localdflash.lab.train.training_prompts import TrainingPrompt


def test_a_subject_is_held_out_in_all_patterns_or_in_none() -> None:
    found = list(questions(random.Random(1)))
    assert 0.03 < sum(q.held_out for q in found) / len(found) < 0.15
    for subject in ("a container", "recursion", "the water cycle", "a hash table"):
        assert len({q.held_out for q in found if subject in q.text.lower() and "load" not in q.text}) == 1


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages, one held out, as if they had been fetched."""
    found = [
        (corpus.CorpusPackage(name, "1", "MIT", "", held), tmp_path / name)
        for name, held in (("a", False), ("b", True))
    ]
    sources = {
        tmp_path / name: [
            "".join(
                f"def {name}_{n}_{i}(x, y):\n    product = x * y  # of both\n    return product + {i}\n\n\n"
                for i in range(3)
            )
            for n in range(20)
        ]
        for name in ("a", "b")
    }
    monkeypatch.setattr(corpus, "fetch", lambda _packages, _folder: found)
    monkeypatch.setattr(corpus, "python_files", lambda wheel: iter(sources[wheel]))
    return tmp_path


def test_held_out_prompts_are_of_held_out_packages_and_subjects(packages: Path) -> None:
    found = list(training_prompts.of_corpus(packages, 3))
    assert len(found) >= 50
    held_out_questions = {q.text: q.held_out for q in questions(random.Random(0))}
    for question in found:
        if question.text in held_out_questions:
            assert held_out_questions[question.text] == question.held_out
        else:
            assert ("b_" in question.text) == question.held_out
    assert {"talk", "explain"} <= {q.kind for q in found}
    assert len({q.text for q in found}) == len(found)
    assert 1 <= sum(q.held_out for q in found[: 2 * training_prompts.HELD_OUT_EVERY]) <= 2


def test_a_prompt_file_comes_back(tmp_path: Path) -> None:
    wanted = [
        Question("talk", "What is\na hash?", False),
        Question("chat", "Größe „x“", True, ("Hello", "Hi!")),
        Question("rest", "", False, ids=(5, 0, 49151)),
    ]
    path = tmp_path / "new" / "prompts.jsonl"
    assert training_prompts.write(path, wanted) == 3
    assert training_prompts.read(path) == [
        TrainingPrompt(0, "talk", False, "What is\na hash?"),
        TrainingPrompt(1, "chat", True, "Größe „x“", ("Hello", "Hi!")),
        TrainingPrompt(2, "rest", False, "", (), (5, 0, 49151)),
    ]
    assert list(path.parent.iterdir()) == [path]


LINE = '{"number": 1, "kind": "talk", "held_out": false, "text": "x", "before": %s}'


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"number": 1, "kind": "song", "held_out": false, "text": "x"}',
        LINE % '[""]',
        '{"number": 1, "kind": "rest", "held_out": false, "text": "", "ids": [1, "2"]}',
        '{"number": 1, "kind": "talk", "held_out": false, "text": "", "ids": [1]}',
    ],
)
def test_a_line_that_is_no_prompt(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    training_prompts.write(path, [Question("talk", "What?", False)])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TrainingError, match="line 2 is no prompt"):
        training_prompts.read(path)
