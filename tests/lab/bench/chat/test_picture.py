"""The picture: whatever was measured can be drawn, a run that was cut short too."""

import re
from pathlib import Path
from typing import Any

from localdflash.lab.bench.chat.chat_picture import draw

POINTS = [
    {"context": 256, "tok_s": {"plain": 100.0, "drafting": 160.0}, "tau": {"drafting": 1.7}},
    {"context": 512, "tok_s": {"plain": 90.0, "drafting": 120.0}, "tau": {"drafting": 1.5}},
]


def result_of(*slots: list[float], points: Any = ()) -> dict[str, Any]:
    names = ("function", "talk", "json")
    return {
        "categories": {name: {"accept_by_slot": one} for name, one in zip(names, slots, strict=False)},
        "context": list(points),
    }


def test_shares_and_contexts_are_written_into_it(tmp_path: Path) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none"}):  # text stays text
        draw(result_of([0.81, 0.42], [0.13], points=POINTS), tmp_path / "a.svg")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / "a.svg").read_text())
    assert {"function", "talk", "0.81", "0.42", "0.13", "256", "512", "plain, tokens/s"} <= set(texts)
