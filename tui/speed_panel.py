"""Panel with the speed of the last answer: acceptance by draft position, step times, drafters."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from textual import events, on
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from localdflash.chat.acceptance import Acceptance
from localdflash.text.sanitize import printable
from localdflash.tui.status_bar import group_digits

_LEVELS = "▁▂▃▄▅▆▇█"
_MAX_POSITIONS = 16  # draft positions, one per row
# Meaning of each tint of the acceptance view.
LEGEND: Mapping[str, str] = {
    "dflash": "drafted by DFlash",
    "lookup": "prompt lookup",
    "grammar": "forced by a grammar",
    "own": "the target model",
}
_TINT_STYLES = {"dflash": "", "lookup": "italic", "grammar": "bold italic", "own": "bold"}


def bar(share: float, width: int) -> str:
    """Return a bar of `width` cells, filled to a share of 0 to 1; a share above 0 fills at least one cell."""
    if not math.isfinite(share):
        return "─" * width
    share = min(max(share, 0.0), 1.0)
    filled = max(round(share * width), 1 if share else 0)
    return "█" * filled + "─" * (width - filled)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the last `width` values, each a column as high as its share of the largest."""
    last = values[-width:] if width > 0 else []
    largest = max(last, default=0.0) or 1.0
    return "".join(_LEVELS[round(value / largest * (len(_LEVELS) - 1))] for value in last)


def panel_text(view: Acceptance | None, width: int) -> Content:
    """Return the panel's content for a width in cells."""
    sections: list[list[Content]] = []
    if view:
        rates, drafted_by = _rates(list(view.rates), width), _drafters(view.by_drafter, width)
        sections = [part for part in (list(_summary(view)), rates, _positions(view, width), drafted_by) if part]
    sections = [*(sections or [[Content("No numbers yet: they come with the first answer.")]]), _legend()]
    return Content("\n\n").join(Content("\n").join(section) for section in sections)


def _summary(view: Acceptance) -> Iterable[Content]:
    if view.tau:
        yield Content.assemble(("τ ", "bold"), f"{view.tau:.2f} tokens a step")
    if view.drafted:
        share = _percent(view.accepted / view.drafted)
        yield Content(f"{group_digits(view.accepted)} of {group_digits(view.drafted)} drafted accepted, {share}")
    if view.step_ms:
        yield Content(f"a step: p50 {view.step_ms[0]:.1f} ms, p95 {view.step_ms[1]:.1f} ms")


def _rates(rates: Sequence[float], width: int) -> list[Content]:
    known = [rate for rate in rates if rate > 0]
    if not known:
        return []
    range_ = f"{min(known):.0f} to {max(known):.0f}, now {known[-1]:.0f}"
    return [_title("Tokens a second"), Content.styled(sparkline(rates, width), "$primary"), Content(range_)]


def _positions(view: Acceptance, width: int) -> list[Content]:
    if not view.acceptance_by_position:
        return []
    rows, digits = [_title("Accepted, by draft position")], len(group_digits(max(view.drafted_counts, default=0)))
    for at, share in enumerate(view.acceptance_by_position[:_MAX_POSITIONS]):
        count = f" of {group_digits(view.drafted_counts[at]):<{digits}}" if at < len(view.drafted_counts) else ""
        rows.append(_row(f"{at + 1:>2} ", share, f" {_percent(share):>5}{count}", width, "$primary"))
    return rows


def _drafters(by_drafter: Mapping[str, int], width: int) -> list[Content]:
    steps = sum(by_drafter.values())
    if not steps:
        return []
    rows, digits = [_title("Verify steps, by drafter")], len(group_digits(max(by_drafter.values())))
    for name, count in sorted(by_drafter.items(), key=lambda one: -one[1]):
        label = f"{printable(name) or 'none':<8.8} "
        number = f" {_percent(count / steps):>5} {group_digits(count):>{digits}}"
        style = f"${name}" if name in LEGEND else "$text-muted"
        rows.append(_row(label, count / steps, number, width, style))
    return rows


def _row(label: str, share: float, number: str, width: int, style: str) -> Content:
    room = min(max(width - len(label) - len(number), 0), 20)
    return Content.assemble(label, (bar(share, room), style), number)


def _legend() -> list[Content]:
    rows = [_title("Tints of the acceptance view, F2")]
    for name, meaning in LEGEND.items():
        style = f"{_TINT_STYLES[name]} ${name} on ${name}-tint".strip()
        rows.append(Content.assemble((f" {name:<7} ", style), f" {meaning}"))
    return [*rows, Content("Every second step is underlined.")]


def _title(text: str) -> Content:
    return Content.styled(text, "bold $text-muted")


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %" if math.isfinite(share) else "–"


class SpeedPanel(VerticalScroll):
    """Panel with the speed statistics of the last answer."""

    SCOPED_CSS: ClassVar[bool] = False
    DEFAULT_CSS = """
    SpeedPanel {
        dock: right; width: 40; height: 1fr; padding: 0 1; background: $surface; border-left: solid $border-blurred;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    SpeedPanel:focus { border-left: solid $border; }
    .-narrow SpeedPanel {
        dock: bottom; width: 1fr; height: 12; max-height: 50%; border-left: none; border-top: solid $border-blurred;
    }
    .-narrow SpeedPanel:focus { border-top: solid $border; }
    """

    def __init__(self) -> None:
        self._text = Static(markup=False)
        super().__init__(self._text)
        self._view: Acceptance | None = None

    def update_view(self, view: Acceptance) -> None:
        """Show the statistics of an answer."""
        self._view = view
        self._draw()

    @on(events.Resize)
    def _draw(self) -> None:
        if width := self.scrollable_content_region.width:
            self._text.update(panel_text(self._view, width))
