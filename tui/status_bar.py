"""Status bar: `○ embedded · 412/1 024 · 58 tok/s · τ 3.9 · 51 % accepted · first 0.18 s`; `first` is the TTFT."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rich.cells import cell_len
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from localdflash.text.sanitize import printable
from localdflash.tui.captions import model_name
from localdflash.tui.styled_lines import cut

SEPARATOR = " · "
NEARLY_FULL_SHARE = 0.9
_PULSE = "▁▃▅▇▅▃"
_PULSE_SECONDS = 0.25
_WORKING_STAGES = ("starting", "loading", "waiting")
_MIN_MODEL_CELLS = 4


@dataclass(frozen=True, slots=True)
class Status:
    """Values of the status bar; None, and a `context_limit` of 0, mean unknown."""

    model: str = ""
    stage: str = ""  # `Answerer.stage`, which may end in details ("loading: compiling 3 of 40"); "" once ready
    context_tokens: int | None = None  # used by the chat
    context_limit: int = 0
    rate: float | None = None  # tokens per second
    is_average: bool = False  # whether the rate is that of the whole answer
    tau: float | None = None  # tokens per verify step, the target's own included
    accepted: float | None = None  # share of the drafted tokens
    ttft_ms: float | None = None
    drafting_on: bool = True
    has_drafter: bool = True  # whether the pair has a drafter model
    busy: bool = False


@dataclass(frozen=True, slots=True)
class StatusPart:
    """Part of the status bar. `fit_parts` shortens, then drops the part with the lowest `priority`, down to two."""

    name: str
    text: str
    priority: int
    style: str = "$text-muted"
    short: str = ""


def status_parts(status: Status, waited: float = 0.0) -> list[StatusPart]:
    """Return the model and the stage, or the numbers once it is ready; `waited` is seconds since the stage began."""
    parts = [StatusPart("model", printable(model_name(status.model)), 100, "$foreground")]
    if stage := _stage(status.stage, waited):
        parts.append(StatusPart("stage", stage, 95, "$error" if status.stage == "disconnected" else "$foreground"))
    else:
        parts += _numbers(status)
    return [part for part in parts if part.text]


def _stage(stage: str, waited: float) -> str:
    stage, _, details = stage.partition(": ")
    if details:
        return f"loading the model, {details}…"
    seconds = f" {waited:.0f} s" if waited >= 1 else ""
    return {
        "starting": "starting the daemon…",
        "loading": f"loading the model…{seconds}",
        "waiting": f"waiting for another chat…{seconds}",
        "disconnected": "not connected",
    }.get(stage, "")


def _numbers(status: Status) -> list[StatusPart]:
    rate = f"{_short(status.rate)} tok/s{' avg' if status.is_average else ''}" if _positive(status.rate) else ""
    parts = [_context(status), StatusPart("rate", rate, 90, "$foreground")]
    if not status.drafting_on:
        parts.append(StatusPart("draft", "drafting off", 60))
    else:
        tau, share = status.tau, status.accepted
        parts.append(StatusPart("tau", f"τ {tau:.1f}" if _positive(tau) else "", 50))
        known = share is not None and 0 <= share <= 1
        accepted = f"{share:.0%} accepted".replace("%", " %") if known else ""
        parts.append(StatusPart("accepted", accepted if status.has_drafter else "no drafter", 45))
    ttft = f"first {status.ttft_ms / 1e3:.2f} s" if status.ttft_ms and _positive(status.ttft_ms) else ""
    return [*parts, StatusPart("ttft", ttft, 30)]


def _context(status: Status) -> StatusPart:
    if status.context_tokens is None:
        return StatusPart("context", "", 70)
    used = group_digits(status.context_tokens)
    if not status.context_limit:
        return StatusPart("context", f"{used} tokens", 55)
    share = status.context_tokens / status.context_limit
    count = f"{used}/{group_digits(status.context_limit)}"
    if share >= 1:
        return StatusPart("context", f"{count} context full", 80, "$error", "context full")
    if share > NEARLY_FULL_SHARE:
        short = f"{share:.0%} full".replace("%", " %")
        return StatusPart("context", f"{count} context nearly full", 80, "$warning", short)
    return StatusPart("context", count, 70)


def group_digits(count: int) -> str:
    """Return the number with its digits grouped: 12345 is "12 345"."""
    return f"{count:,}".replace(",", " ")


def _short(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def fit_parts(parts: Sequence[StatusPart], width: int) -> list[StatusPart]:
    """Return the parts that fit into `width` cells; the model's name is cut before the rate is dropped."""
    remaining = list(parts)
    while _cells(remaining) > width and len(remaining) > 2:
        at = min(range(len(remaining)), key=lambda index: remaining[index].priority)
        part = remaining.pop(at)
        remaining[at:at] = [replace(part, text=part.short, short="")] if part.short else []
    over = _cells(remaining) - width
    if over <= 0 or not remaining:
        return remaining
    first = remaining[0]
    room = cell_len(first.text) - over
    if len(remaining) > 1 and room < _MIN_MODEL_CELLS:
        return fit_parts(remaining[:1] if remaining[0].priority >= remaining[1].priority else remaining[1:], width)
    return [replace(first, text=cut(first.text, room)), *remaining[1:]]


def _cells(parts: Sequence[StatusPart]) -> int:
    return sum(cell_len(part.text) for part in parts) + len(SEPARATOR) * max(len(parts) - 1, 0)


class StatusBar(Widget):
    """Status bar of the chat."""

    DEFAULT_CSS = "StatusBar { height: 1; padding: 0 1; background: $panel; color: $text-muted; }"
    ALLOW_SELECT: ClassVar[bool] = False

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.status = Status()
        self._clock = clock
        self._stage_began = clock()
        self._ticks = 0
        self._timer: Timer | None = None

    def on_mount(self) -> None:
        """Create the timer of the pulse and of the elapsed seconds."""
        self._timer = self.set_interval(_PULSE_SECONDS, self._tick, pause=True)
        self._update_timer()

    def update(self, status: Status) -> None:
        """Show a status. While an answer has no rate yet, the last rate of the same model stays."""
        before = self.status
        if status.busy and not _positive(status.rate) and status.model == before.model:
            status = replace(status, rate=before.rate, is_average=before.is_average)
        if status.stage != before.stage:
            self._stage_began = self._clock()
        if status != before:
            self.status = status
            self._update_timer()
            self.refresh()

    @property
    def line(self) -> str:
        """Return the line as plain text, without the pulse."""
        return SEPARATOR.join(part.text for part in self._parts())

    def render(self) -> Content:
        """Return the pulse and the parts that fit."""
        shown: list[Content | str | tuple[str, str]] = [(self._glyph(), "$foreground"), " "]
        for number, part in enumerate(self._parts()):
            shown += [(SEPARATOR, "$text-muted")] if number else []
            shown.append((part.text, part.style))
        return Content.assemble(*shown)

    def _parts(self) -> list[StatusPart]:
        width = self.content_size.width - 2
        return fit_parts(status_parts(self.status, self._clock() - self._stage_began), width) if width > 0 else []

    def _glyph(self) -> str:
        if not self._is_working:
            return "○"
        return "●" if self.app.animation_level == "none" else _PULSE[self._ticks % len(_PULSE)]

    @property
    def _is_working(self) -> bool:
        return self.status.busy or self.status.stage.startswith(_WORKING_STAGES)

    def _update_timer(self) -> None:
        if self._timer is None:
            return
        if self._is_working:
            self._timer.resume()
        else:
            self._timer.pause()

    def _tick(self) -> None:
        self._ticks += 1
        self.refresh()
