"""However long or tangled a text is, it is shown, and soon. The times allowed here are many times those measured."""

import time

import pytest

from localdflash.tui.markdown import MarkdownDocument
from tests.tui.markdown_samples import chunks, document

PROSE = "The quick **brown** fox `jumps` over the [lazy](https://x.y) dog, *again*. "
LOOP = "```python\n" + "    x = foo(bar, 1)\n" * 16 + "```\n"
MIXED = f"# Title\n\n{PROSE * 3}\n\n- item\n- item\n\n|a|b|\n|-|-|\n|1|2|\n\n{LOOP}\n"

TEXTS = {
    "5 000 pipes": "|" * 5000 + "\n" + "|-" * 5000 + "|\n" + "|" * 5000,
    "a table of 5 000 short rows": "|a|b|\n|-|-|\n" + "|\n" * 5000,
    "500 quotes": ">" * 500 + " deep\n",
    "500 quotes over 100 lines": (">" * 500 + " deep\n") * 100,
    "500 quotes, one more in each line": "".join("> " * depth + "deep\n" for depth in range(500)),
    "500 lists in a line": "- " * 500 + "deep\n",
    "500 lists": "".join("  " * depth + "- deep\n" for depth in range(500)),
    "500 numbered lists": "".join("   " * depth + "1. deep\n" for depth in range(500)),
    "10 000 characters": "x" * 10_000,
    "10 000 characters of code": "```js\n" + "x=(1);" * 1_700,
    "100 000 characters": "The quick brown fox. " * 5_000,
    "100 000 wide characters": "日本" * 50_000,
    "100 000 characters in lines": (PROSE + "\n") * 1_200,
    "10 000 lines": MIXED * 300,
    "10 000 items": "- item **one**\n" * 10_000,
    "brackets": "[" * 7_999,
    "images": "![" * 3_999,
    "stars": "*a **b " * 1_100,
    "backticks": "".join("`" * count + "a" for count in range(1, 120)),
    "links": "[a](" * 1_999,
    "closing brackets": "[a" * 1_999 + "]" * 1_999,
    "entities": "&" * 7_999,
    "tildes": "~~a " * 1_999,
    "ticks never closed": "````\n" + "```\n" * 5_000,
    "markers": "-\n" * 3_000,
    "emoji selectors": "\ufe0f" * 10_000 + "\u0301" * 10_000,
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
    assert growing.fences[0].code == source
