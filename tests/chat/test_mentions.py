"""Parsing of mentions, and attaching the mentioned files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from localdflash.chat.attachable_files import AttachableFiles
from localdflash.chat.mentions import MAX_MENTIONS, attach_mentions, find_mentions, spell_mention

EXISTING = {"a.py", "src/b.py", "with space.md", "README", "[id].tsx", "odd:12", "v1.", "tail)"}


def found(text: str, picked: set[str] | None = None) -> list[str]:
    return [one.name for one in find_mentions(text, EXISTING.__contains__, picked or set())]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("see @a.py, @src/b.py.", ["a.py", "src/b.py"]),
        ("@a.py:12", ["a.py:12"]),
        ("@a.py:12-40: why", ["a.py:12-40"]),
        ("@a.py:Box.add!", ["a.py:Box.add"]),
        ("@a.py:-3", []),
        ('@"with space.md":3-4.', ["with space.md:3-4"]),
        ("@with space.md", []),
        ("@odd:12", ["odd:12"]),
        ("me@a.py", []),
        ('@"', []),
    ],
)
def test_find_mentions(text: str, names: list[str]) -> None:
    assert found(text) == names


def test_mentions_in_a_fence_count_only_if_picked() -> None:
    text = "@a.py\n```python\n@README\ndef f(): ...\n@src/b.py\n```\n@README"
    assert found(text) == ["a.py", "README"]
    assert found(text, {"@src/b.py"}) == ["a.py", "src/b.py", "README"]
    assert found("```\n@a.py") == []
    assert found("````\n```\n@a.py\n````\n@a.py") == ["a.py"]


@given(st.text(st.characters(blacklist_characters="\n", blacklist_categories=["Cs"]), min_size=1, max_size=30))
@example('a "b" \\')
@example("a:12")
@example("a.")
@example("@a")
@example(" ")
def test_spelled_mention_is_parsed_back(path: str) -> None:
    for part in ("", "3-4", "Box.add"):
        for text in (
            spell_mention(path, part),
            f"see {spell_mention(path, part)} now",
            f"({spell_mention(path, part)})",
        ):
            (one,) = find_mentions(text, path.__eq__)
            assert (one.path, one.part) == (path, part)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Callable[..., AttachableFiles]]:
    opened: list[AttachableFiles] = []

    def start(**texts: str) -> AttachableFiles:
        root = tmp_path / "project"
        root.mkdir()
        for name, text in texts.items():
            (root / f"{name}.py").write_text(text)
        opened.append(AttachableFiles(root))
        return opened[0]

    yield start
    for one in opened:
        one.close()


def test_mentioned_files_are_attached_once(files: Callable[..., AttachableFiles]) -> None:
    found = attach_mentions("@a.py and @b.py:1, again @./a.py; @c.py is me@a.py", files(a="one\n", b="x\ny\n"))
    assert [(one.kind, one.name, one.text) for one in found.attachments] == [
        ("file", "a.py", "one\n"),
        ("file", "b.py:1", "x\n"),
    ]
    assert found.refused == ()


def test_mentions_are_limited(files: Callable[..., AttachableFiles]) -> None:
    files_there = files(**{f"f{number}": "x" for number in range(MAX_MENTIONS + 5)})
    found = attach_mentions(" ".join(f"@f{number}.py" for number in range(MAX_MENTIONS + 5)), files_there)
    assert len(found.attachments) == MAX_MENTIONS
    assert found.refused == (f"more than {MAX_MENTIONS} files are mentioned; send them in several messages",)
