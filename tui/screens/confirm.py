"""A question with two answers. The safe one has the focus, so Enter alone changes nothing.

It may open while its user types: until no key has come for a moment, keys are no answer (`listens`).
"""

import time
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Static

from localdflash.tui.screens.dialog import Dialog, one_line

CALM = 0.5  # seconds without a key: who types on has not read the question yet


class Confirm(Dialog[bool]):
    """Lines under a title, and a button for each answer. The result is True for `yes`, False for everything else."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", show=False),
        Binding("n", "answer(False)", show=False),
        Binding("left,right", "app.focus_next", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]
    DEFAULT_CSS = """
    Confirm {
        #box { max-width: 64; }
        #title, &.-low #title { display: block; height: auto; max-height: 2; }
        #lines { height: auto; max-height: 1fr; margin: 1 0; }
        #answers { height: 1; }
        Button { width: auto; min-width: 1; margin: 0 2 0 0; }
        &.-low #lines { height: 1fr; margin: 0; }
        &.-narrow Button { margin: 0 1 0 0; }
    }
    """

    def __init__(self, title: str, lines: Sequence[str], yes: str, no: str) -> None:
        super().__init__(title, f"Y {one_line(yes)}   N {one_line(no)}")
        self._lines = lines
        self._answers = {"yes": yes, "no": no}
        self._listens, self._last_key = False, time.monotonic()

    def listens(self) -> bool:
        """Whether a key that is pressed now is an answer; to be asked for each key."""
        calm, self._last_key = time.monotonic() - self._last_key, time.monotonic()
        self._listens |= calm >= CALM
        return self._listens

    def body(self) -> Iterable[Widget]:
        """The lines and the buttons."""
        text = "\n".join(one_line(line) for line in self._lines)
        yield VerticalScroll(Static(text, markup=False), id="lines", can_focus=False)
        buttons = (Button(Content(one_line(label)), id=name, compact=True) for name, label in self._answers.items())
        yield Horizontal(*buttons, id="answers")

    def on_mount(self) -> None:
        """Focus the safe answer."""
        self.query_one("#no", Button).focus()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.action_answer(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Return an answer."""
        self.dismiss(yes)

    def action_close(self) -> None:
        """Answer no (Esc)."""
        self.dismiss(False)

    def action_scroll(self, rows: int) -> None:
        """Scroll the lines, if they do not fit."""
        self.query_one("#lines").scroll_relative(y=rows, animate=False)
