"""Prompts of the user's own: files, repositories, chats."""

from pathlib import Path

import pytest

from localdflash.base.errors import TrainingError
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.store import ChatStore
from localdflash.lab.train.own_prompts import held_out_file, of_chats, of_file, of_repository


@pytest.mark.parametrize("line", ["What?", '{"text": 3}', '" "', "[" * 100_000])
def test_a_line_that_asks_nothing(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'"What?"\n{line}\n')
    with pytest.raises(TrainingError, match=r"mine\.jsonl: line 2 is no prompt: expected"):
        list(of_file(path))


def module(name: str) -> str:
    return "".join(
        f"def {name}_{i}(first, second):\n    total = first + second  # both\n    return total + {i}\n\n\n"
        for i in range(6)
    )


def test_a_repository_is_asked_about_with_whole_files_held_out(tmp_path: Path) -> None:
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
    asked = [q for q in found if "function" in q.text and "x_" in q.text]
    assert len(asked) > 40
    for question in asked:
        assert any(f"{name}_" in question.text for name in held_out) == question.held_out
    assert {q.held_out for q in asked} == {True, False}
    assert list(of_repository(tmp_path, 0)) == found


def stored(path: Path, *chats: list[Message]) -> None:
    store = ChatStore.open(path, print)
    for chat in chats:
        session, parent = store.create(folder="/", title="a"), None
        for message in chat:
            parent = store.add(session, parent, message).id
    store.close()


def test_questions_of_chats_come_with_the_turns_before_them(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    file = Attachment("file", "a.py", "x = 1")
    stored(
        path,
        [
            Message("user", "What is x?", (file,)),
            Message("assistant", "One."),
            Message("user", "And y?"),
            Message("assistant", "Two."),
        ],
        [Message("user", "Never answered"), Message("user", "Asked again"), Message("assistant", "Yes.")],
    )
    found = {(q.kind, q.text): q.before for q in of_chats(path)}
    first = "a.py:\n```\nx = 1\n```\n\nWhat is x?"
    assert found == {("chat", first): (), ("chat", "And y?"): (first, "One."), ("chat", "Never answered"): ()}
