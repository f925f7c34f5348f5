"""Streamed Markdown: any chunks end in the same lines, and only the end of the lines changes."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

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
    """The examples are lines whose meaning is changed by the next line or by the rest of the line."""
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


TEXTS = {
    "5 000 pipes": "|" * 5000 + "\n" + "|-" * 5000 + "|\n" + "|" * 5000,
    "500 quotes, one more in each line": "".join("> " * depth + "deep\n" for depth in range(500)),
    "500 lists": "".join("  " * depth + "- deep\n" for depth in range(500)),
    "40 000 wide characters": "日本" * 20_000,
    "2 000 items": "- item **one**\n" * 2_000,
    "brackets": "[" * 7_999,
    "stars": "*a **b " * 1_100,
    "closing brackets": "[a" * 1_999 + "]" * 1_999,
    "entities": "&" * 7_999,
    "ticks never closed": "````\n" + "```\n" * 2_000,
    "emoji selectors": "\ufe0f" * 4_000 + "\u0301" * 4_000,
}


@pytest.mark.parametrize("name", TEXTS)
def test_pathological_texts_are_laid_out_fast(name: str) -> None:
    text = TEXTS[name]
    began = time.process_time()
    made = document(text)
    screen_text = made.lines(80)
    assert time.process_time() - began < 3
    assert all(line.width <= 80 for line in screen_text)
    words = "".join(line.text for line in screen_text)
    if "deep" in text:
        assert words.count("deep") == text.count("deep")
    began = time.process_time()
    made.lines(20)
    assert time.process_time() - began < 3


def test_long_fence_streams_at_constant_cost() -> None:
    """At 400 tokens per second and 30 frames per second, a frame should take 2 ms on an idle machine."""
    source = "".join(f"def function_{n}(a: int) -> str:\n    return f'{{a}} {n}'  # {n * n}\n\n\n" for n in range(250))
    growing = MarkdownDocument()
    growing.append("```python\n")
    growing.lines(100)
    times = []
    for piece in chunks(source, [53]):
        began = time.process_time()
        growing.append(piece)
        growing.lines(100)
        times.append(time.process_time() - began)
    growing.finish()
    assert len(growing.lines(100)) == 1_001
    assert sorted(times)[int(len(times) * 0.95)] < 0.05
    assert growing.fences()[0].code == source
