"""Search/replace blocks."""

from pathlib import Path

import pytest

from tests.chat.workplace import BOX, after, made, problem

BLOCK = "<<<<<<< SEARCH\n    return w * h\n=======\n    return abs(w * h)\n>>>>>>> REPLACE\n"
CHANGED = BOX.replace("return w * h", "return abs(w * h)")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "work", {"src/box.py": BOX, "twice.py": "a\nb\na\n"})


@pytest.mark.parametrize(
    "answer",
    [
        f"src/box.py\n```python\n{BLOCK}```\n",
        f"```python\nsrc/box.py\n{BLOCK}```\n",
        f"```\n# src/box.py\n{BLOCK}```\n",
        f"src/box.py\n{BLOCK}",
        f"src/box.py\n```python\n{BLOCK}```\n".replace("<<<<<<<", "<<<<<<").replace(">>>>>>>", ">>>>>>"),
    ],
)
def test_a_block_names_its_file(root: Path, answer: str) -> None:
    assert after(root, answer) == CHANGED


def test_files_that_are_new_emptied_or_missing(root: Path) -> None:
    answer = "new.py\n```python\n<<<<<<< SEARCH\n=======\nx = 1\n>>>>>>> REPLACE\n```"
    assert after(root, answer, "new.py") == "x = 1\n"
    answer = "twice.py\n<<<<<<< SEARCH\na\nb\na\n=======\n>>>>>>> REPLACE\n"
    assert after(root, answer, "twice.py") == ""
    assert "is not there to be changed" in problem(root, f"none.py\n{BLOCK}")


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        ("<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n", "more than one place: lines 1 and 3"),
        ("<<<<<<< SEARCH\n=======\nb\n>>>>>>> REPLACE\n", "does not say next to which lines"),
        ("<<<<<<< SEARCH\nb\n=======\nc\n", "cut short"),
    ],
)
def test_why_a_block_is_not_applied(root: Path, block: str, reason: str) -> None:
    assert reason in problem(root, f"twice.py\n```python\n{block}```")


def test_a_text_about_such_blocks_is_none(root: Path) -> None:
    text = "x = '''\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n'''\n"
    assert after(
        root,
        f"```python\n# a comment\n# src/t.py\n\n# of its own\n```\n```python src/t.py\ny = 1\n\n{text}```",
        "src/t.py",
    ) == (f"y = 1\n\n{text}")
