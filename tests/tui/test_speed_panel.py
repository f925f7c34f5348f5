from collections.abc import Sequence
from dataclasses import dataclass, field

from localdflash.tui.speed_panel import LEGEND, panel_text
from localdflash.tui.themes import VARIABLE_DEFAULTS


@dataclass
class View:
    acceptance: Sequence[float] = ()
    offered: Sequence[int] = ()
    step_ms: tuple[float, float] | None = None
    by_drafter: dict[str, int] = field(default_factory=dict)
    rates: Sequence[float] = ()
    tau: float | None = None
    accepted: int | None = None
    drafted: int | None = None


VIEW = View(
    acceptance=(0.92, 0.7, 0.35, 0.0),
    offered=(1310, 300, 200, 10),
    step_ms=(12.34, 30.06),
    by_drafter={"lookup": 30, "dflash": 60, "": 10},
    rates=(10.0, 40.0, 60.0, 58.0),
    tau=3.917,
    accepted=210,
    drafted=412,
)


def test_every_number_stands_in_words() -> None:
    text = panel_text(VIEW, 38).plain
    for expected in (
        "3.92 tokens a step",
        "210 of 412 drafted accepted, 51 %",
        "p50 12.3 ms, p95 30.1 ms",
        "10 to 60, now 58",
        "92 % of 1 310",
        "35 % of 200",
        "0 % of 10",
        "60 % 60",
        "30 % 30",
        "10 % 10",
        "nobody",
    ):
        assert expected in text
    rows = text.split("\n")
    order = [next(i for i, row in enumerate(rows) if row.startswith(name)) for name in ("dflash ", "lookup ", "nobody")]
    assert order == sorted(order)


def test_without_numbers_it_says_so_and_the_legend_names_every_colour() -> None:
    changes = {"success-tint", "error-tint"}  # of a file
    assert {*LEGEND} | {f"{name}-tint" for name in LEGEND} == {*VARIABLE_DEFAULTS} - changes
    text = panel_text(View(by_drafter={"\x1b[31m[b]": 1}), 38, ["lookup", "dflash"]).plain
    assert all(name in text and meaning in text for name, meaning in LEGEND.items() if name != "dflash")
    assert "\x1b" not in text
    text = panel_text(View(), 38).plain
    assert "No numbers yet" in text
    assert "nan" not in text
    assert "0 %" not in text
