"""Dialog of /bench: the same turn answered without and with drafting."""

import math
from collections.abc import Iterable
from typing import ClassVar

from textual import events, on
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from localdflash.chat.drafting_comparison import Comparison, ModeResult
from localdflash.tui.screens.dialog import Dialog, indented, one_line
from localdflash.tui.speed_panel import bar
from localdflash.tui.status_bar import group_digits


def compare_text(comparison: Comparison, width: int) -> Content:
    """Return the whole text for a width in cells."""
    modes = (("baseline", comparison.baseline), ("drafting", comparison.drafting))
    rows = [_mode(name, result, comparison, width) for name, result in modes]
    return Content("\n").join([*rows, Content(), *_verdict(comparison)])


def _mode(name: str, result: ModeResult, comparison: Comparison, width: int) -> Content:
    best_rate = max(comparison.baseline.rate, comparison.drafting.rate)
    has_rate = result.rate > 0 and math.isfinite(result.rate)
    number = f"{result.rate:.1f} tok/s" if has_rate else "–"
    left, right = f"{name:<9}", f" {number:>12}"
    room = max(width - len(left) - len(right), 0)
    details = [f"{len(result.rates)} of {comparison.rounds} rounds", f"{group_digits(result.tokens)} tokens"]
    details += [f"τ {result.tau:.2f}"] if result.tau else []
    details += [f"first {result.ttft_ms / 1e3:.2f} s"] if result.ttft_ms else []
    below = indented(" · ".join(details), width, len(left) if width > 60 else 2) if result.rates else ""
    style = "$dflash" if name == "drafting" else "$own"
    rate_bar = bar(result.rate / best_rate if has_rate else 0.0, room)
    return Content.assemble(left, (rate_bar, style), right, "\n", below)


def _verdict(comparison: Comparison) -> Iterable[Content]:
    if ratio := comparison.ratio:
        overlap = "No difference beyond the noise: the speeds overlap"
        yield Content.styled(overlap if ratio == 1 else f"Drafting is {ratio:.2f}× as fast", "bold")
    if comparison.identical is not None:
        same = "✓ Both texts are the same, to the byte" if comparison.identical else "✗ The texts differ"
        yield Content.styled(same, "$success" if comparison.identical else "$error")
    if comparison.problem:
        yield Content.styled(one_line(comparison.problem), "$error")
    elif comparison.activity:
        yield Content.styled(one_line(comparison.activity), "$text-muted")


class CompareScreen(Dialog[None]):
    """Dialog that shows a running comparison and its result."""

    DEFAULT_CSS: ClassVar[str] = """
    CompareScreen {
        #box { max-width: 80; }
        #all { height: auto; max-height: 1fr; margin: 1 0; }
        &.-low #all { height: 1fr; margin: 0; }
    }
    """

    def __init__(self) -> None:
        super().__init__("Without and with drafting, same turn", "Esc closes, and stops what still runs")
        self._comparison = Comparison(activity="Starting…")
        self._all, self._text = VerticalScroll(id="all"), Static(markup=False)

    def body(self) -> Iterable[Widget]:
        """Yield a single text."""
        with self._all:
            yield self._text

    def show(self, comparison: Comparison) -> None:
        """Show the current state of the comparison."""
        self._comparison = comparison
        self._draw()

    @on(events.Resize)
    def _resized(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        if width := self._all.scrollable_content_region.width:
            self._text.update(compare_text(self._comparison, width))
