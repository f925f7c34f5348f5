"""Prompts from a user's files, repositories and chats."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from localdflash.base.errors import TrainingError
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.store import ChatStore
from localdflash.lab.train import corpus, training_prompts
from localdflash.lab.train.drafter_stages import check_sources, write_prompts
from localdflash.lab.train.own_prompts import held_out_file, of_chats, of_file, of_repository
from localdflash.lab.train.questions import Question, questions
from tests.support.reports import RecordedReport


@pytest.mark.parametrize("line", ["What?", '{"text": 3}', '" "', "[" * 100_000])
def test_a_line_without_a_prompt_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'"What?"\n{line}\n')
    with pytest.raises(TrainingError, match=r"mine\.jsonl: line 2: not a prompt \(expected"):
        list(of_file(path))


def test_only_line_ends_separate_prompts(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\x85d", "e\u2029f"]
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    path.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    assert [question.text for question in of_file(path)] == texts


def test_prompts_of_other_sources_are_refused(tmp_path: Path) -> None:
    def killed() -> Iterator[Question]:
        assert (tmp_path / "sources.json").is_file()  # no prompts without their sources, whenever the run is killed
        yield Question("own", "What?", False)

    check_sources(tmp_path, ["mine"])
    write_prompts(tmp_path, ["mine"], killed, RecordedReport())
    check_sources(tmp_path, ["mine"])
    for damaged in (None, "", '["mi', "\0\0"):  # None: intact; the others as after a power cut
        if damaged is not None:
            (tmp_path / "sources.json").write_text(damaged)
        with pytest.raises(TrainingError, match="other sources"):
            check_sources(tmp_path, ["yours"])


def module(name: str) -> str:
    return "".join(
        f"def {name}_{i}(first, second):\n    total = first + second  # both\n    return total + {i}\n\n\n"
        for i in range(6)
    )


def test_questions_of_a_repository_hold_out_whole_files(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / ("deep/er" if number % 2 else ".")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"m{number}.py").write_text(module(f"function{number}x"))
    for hidden in (".venv", "node_modules", "build/lib"):
        (tmp_path / hidden).mkdir(parents=True)
        (tmp_path / hidden / "no.py").write_text(module("never"))
    (tmp_path / "data.txt").write_text(module("never"))
    (tmp_path / "binary.py").write_bytes(b"\xff" * 400)
    (tmp_path / "link.py").symlink_to(tmp_path / "data.txt")
    found = list(of_repository(tmp_path, 0))
    assert not any("never" in q.text for q in found)
    held_out = {f"function{path.stem[1:]}x" for path in tmp_path.rglob("m*.py") if held_out_file(path, tmp_path)}
    code_questions = [q for q in found if "function" in q.text and "x_" in q.text]
    assert len(code_questions) > 40
    for question in code_questions:
        assert any(f"{name}_" in question.text for name in held_out) == question.held_out
    assert {q.held_out for q in code_questions} == {True, False}
    assert list(of_repository(tmp_path, 0)) == found


def test_questions_of_chats_have_their_earlier_turns(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    file = Attachment("file", "a.py", "x = 1")
    first, again = Message("user", "What is x?", (file,)), Message("user", "And y?")
    unanswered = [Message("user", "Never answered"), Message("user", "Asked again"), Message("assistant", "Yes.")]
    store = ChatStore(path, print)
    for chat in ([first, Message("assistant", "One."), again, Message("assistant", "Two.")], unanswered):
        session, parent = store.create(folder="/"), None
        for message in chat:
            parent = store.add(session, parent, message).id
    store.close()
    found = {(q.kind, q.text): q.before for q in of_chats(path)}
    text = "a.py:\n```\nx = 1\n```\n\nWhat is x?"
    assert found == {("chat", text): (), ("chat", "And y?"): (text, "One."), ("chat", "Never answered"): ()}


def test_a_subject_is_held_out_in_all_patterns_or_in_none() -> None:
    found = list(questions(random.Random(1)))
    assert 0.03 < sum(q.held_out for q in found) / len(found) < 0.15
    for subject in ("a container", "recursion", "the water cycle", "a hash table"):
        assert len({q.held_out for q in found if subject in q.text.lower() and "load" not in q.text}) == 1


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that two packages were downloaded, one of them held out."""
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


def test_held_out_prompts_come_from_held_out_packages_and_subjects(packages: Path) -> None:
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


def test_a_prompt_file_round_trips(tmp_path: Path) -> None:
    expected = [
        Question("talk", "What is\na hash?", False),
        Question("chat", "Größe „x“", True, ("Hello", "Hi!")),
        Question("rest", "", False, ids=(5, 0, 49151)),
    ]
    path = tmp_path / "new" / "prompts.jsonl"
    assert training_prompts.write(path, expected) == 3
    assert training_prompts.read(path) == [
        Question("talk", "What is\na hash?", False, number=0),
        Question("chat", "Größe „x“", True, ("Hello", "Hi!"), number=1),
        Question("rest", "", False, (), (5, 0, 49151), number=2),
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
def test_a_malformed_line_of_a_prompt_file_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    training_prompts.write(path, [Question("talk", "What?", False)])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(TrainingError, match="line 2: not a prompt"):
        training_prompts.read(path)
