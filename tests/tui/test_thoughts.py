"""What a model thought is folded away, and is never taken for the answer."""

import pytest

from localdflash.tui.markdown import MarkdownDocument
from tests.tui.markdown_samples import document, rows


def test_unfolded_they_are_shown_as_typed() -> None:
    made = document("<think>\n*one*\n\ntwo\n</think>Answer")
    made.lines(40)
    made.thoughts_open = True
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ *one*", "│ ", "│ two", "", "Answer"]
    assert made.first_changed == 0
    made.thoughts_open = False
    assert [line.text for line in made.lines(40)] == ["▸ Thought for 2 words", "", "Answer"]


def test_while_they_come_the_end_of_them_is_seen() -> None:
    made = MarkdownDocument()
    made.append("<think>one\ntwo three")
    assert [line.text for line in made.lines(40)] == ["▸ Thinking… two three"]
    made.append(" four five six")
    assert [line.text for line in made.lines(24)] == ["▸ Thinking… our five six"]
    made.thoughts_open = True
    assert [line.text for line in made.lines(40)] == ["▾ Thinking…", "│ one", "│ two three four five six"]


@pytest.mark.parametrize("opening", [1, 4, 7])
@pytest.mark.parametrize("closing", [1, 5, 8])
def test_tags_may_come_in_pieces(opening: int, closing: int) -> None:
    made = MarkdownDocument()
    shown = []
    tag, end = "<think>", "</think>"
    for piece in (" \n" + tag[:opening], tag[opening:] + "a b" + end[:closing], end[closing:] + "done"):
        made.append(piece)
        made.thoughts_open = True
        shown.append([line.text for line in made.lines(40)])
    assert shown[0] in ([], ["▾ Thinking…"])
    assert "<" not in "".join(shown[1])
    assert shown[2] == ["▾ Thought for 2 words", "│ a b", "", "done"]


def test_a_tag_elsewhere_is_text() -> None:
    assert rows("Use `<think>` here.\n\n<think>x</think>") == ["Use <think> here.", "", "<think>x</think>"]
    assert rows("```\n<think>\n```\n") == ["  code  1", "  <think>"]
    assert rows("<thinking>") == ["<thinking>"]
    assert rows("<thi") == ["<thi"]


def test_stopped_while_thinking_nothing_is_lost() -> None:
    made = MarkdownDocument()
    made.append("<think>one two</thi")
    made.finish()
    made.thoughts_open = True
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ one two</thi"]
    made.append("n")
    assert [line.text for line in made.lines(40)] == ["▾ Thinking…", "│ one two"]
    made.append("k>Answer")
    assert [line.text for line in made.lines(40)] == ["▾ Thought for 2 words", "│ one two", "", "Answer"]


def test_empty_thoughts_are_not_shown() -> None:
    assert rows("<think>\n\n</think>\n\nAnswer") == ["Answer"]
