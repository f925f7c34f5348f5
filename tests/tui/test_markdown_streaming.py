"""However a text arrives, in the end it looks as if it had come at once, and on the way only its end changes."""

from collections.abc import Mapping

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from localdflash.tui.block_reader import PlacedBlock, parse
from localdflash.tui.fence import Code
from localdflash.tui.markdown import MarkdownDocument
from tests.tui.markdown_samples import chunks, document, sizes, texts

widths = st.sampled_from((1, 5, 10, 11, 24, 60, 100))


@settings(max_examples=120, deadline=None)
@given(texts, sizes, widths)
@example("- a\n- b | c\n- | -\n", [1], 60)
@example("2. a\n3. b | c\n---|---\n", [1], 60)
@example("para\n| a |\n| - x\n", [1], 60)
@example("para\n#\n", [5, 1, 1], 60)
@example("```\na\n```x\nb\n", [9, 1], 60)
@example("```x|y\n-|-\n", [7, 1], 60)
@example("- a\n\n  ```\n  b\n- c\n", [3], 60)
@example("```\r````crlf line\r", [4], 60)
def test_any_chunking_ends_in_the_same_lines(text: str, sizes: list[int], width: int) -> None:
    """The example lines are those whose meaning the next line, or the rest of the line, changes."""
    growing = MarkdownDocument()
    seen: list[object] = []
    for piece in chunks(text, sizes):
        growing.append(piece)
        lines = growing.lines(width)
        changed = growing.first_changed
        assert list(lines[:changed]) == seen[:changed]
        seen = list(lines)
    growing.finish()
    whole = document(text)
    assert list(growing.lines(width)) == list(whole.lines(width))
    assert growing.first_changed <= len(growing.lines(width))
    assert [one.code for one in growing.fences()] == [one.code for one in whole.fences()]
    assert growing.source == whole.source == text


@settings(max_examples=50, deadline=None)
@given(texts, st.lists(widths, min_size=2, max_size=5))
def test_a_resize_on_the_way_leaves_no_trace(text: str, widths: list[int]) -> None:
    growing = MarkdownDocument()
    for number, piece in enumerate(chunks(text, [17])):
        growing.append(piece)
        growing.lines(widths[number % len(widths)])
    growing.finish()
    assert list(growing.lines(60)) == list(document(text).lines(60))


@settings(max_examples=50, deadline=None)
@given(texts, sizes, st.integers(0, 400))
@example("<think>thought</think>", [1], 0)
@example("<think>thought</think>", [1], 3)
def test_a_stop_anywhere_keeps_what_came_and_the_text_may_go_on(text: str, sizes: list[int], stop: int) -> None:
    growing = MarkdownDocument()
    for piece in chunks(text[:stop], sizes):
        growing.append(piece)
        growing.lines(60)
    growing.finish()
    assert list(growing.lines(60)) == list(document(text[:stop]).lines(60))
    for piece in chunks(text[stop:], sizes):
        growing.append(piece)
        growing.lines(60)
    growing.finish()
    assert list(growing.lines(60)) == list(document(text).lines(60))


def test_only_the_last_line_of_an_open_fence_changes() -> None:
    growing = MarkdownDocument()
    growing.append("before\n\n```python\n" + "x = 1\n" * 50)
    assert len(growing.lines(60)) == 53
    growing.append("y")
    assert [line.text for line in growing.lines(60)[growing.first_changed :]] == ["  y"]
    growing.append(" = 2\nz")
    assert [line.text for line in growing.lines(60)[growing.first_changed :]] == ["  y = 2", "  z"]
    growing.lines(60)
    assert growing.first_changed == len(growing.lines(60))


def test_blocks_before_the_last_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(text: str, number: int, known: Mapping[int, Code]) -> list[PlacedBlock]:
        lengths.append(len(text))
        return parse(text, number, known)

    monkeypatch.setattr("localdflash.tui.block_reader.parse", counted)
    growing = MarkdownDocument()
    for _ in range(30):
        for piece in chunks(
            "A paragraph here.\n\n- item one\n- item two\n\n```py\ncode = 1\n" + "x\n" * 40 + "```\n\n", [9]
        ):
            growing.append(piece)
            growing.lines(60)
    assert max(lengths) < 60
    growing.append("```py\n" + "x\n" * 90 + "```\n")
    growing.lines(60)
    lengths.clear()
    for character in "after it":
        growing.append(character)
        growing.lines(60)
    assert max(lengths) < 60
