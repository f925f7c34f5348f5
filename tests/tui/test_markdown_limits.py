"""However long or tangled a text is, it is shown, and soon. The times allowed here are many times those measured."""

import time

import pytest

from localdflash.tui.markdown import MarkdownDocument
from tests.tui.markdown_samples import chunks, document

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
def test_it_is_shown_soon(name: str) -> None:
    text = TEXTS[name]
    began = time.process_time()
    made = document(text)
    shown = made.lines(80)
    assert time.process_time() - began < 3
    assert all(line.width <= 80 for line in shown)
    words = "".join(line.text for line in shown)
    if "deep" in text:
        assert words.count("deep") == text.count("deep")
    began = time.process_time()
    made.lines(20)
    assert time.process_time() - began < 3


def test_a_fence_of_1_000_lines_costs_the_same_at_its_end() -> None:
    """400 tokens a second, drawn 30 times a second: 2 ms each are the bar, on a machine that does nothing else."""
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
