"""Choose another model: which ones there are, whether they are downloaded, and whether they would fit.

Rows and fits come from callables that may be slow: the list appears when it is ready, and a fit is asked for, once,
when the highlight rests on a row. The result is an id, a path or an hf: name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localdflash.errors import LocaldflashError
from localdflash.tui.screens.dialog import Choices, Dialog, Field, one_line, two_rows
from localdflash.weights.gguf import is_gguf

if TYPE_CHECKING:
    from localdflash.chat.models import ModelRow

Rows = Callable[[], Awaitable[Sequence["ModelRow"]]]
Fit = Callable[[str], Awaitable[Sequence[str]]]
REST = 0.2  # seconds on a row before its fit is asked for


class ModelPicker(Dialog[str]):
    """The list of models under a field that narrows it, or takes the path of a file."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "move(8)", show=False),
        Binding("pageup", "move(-8)", show=False),
    ]
    DEFAULT_CSS = """
    ModelPicker {
        #box { height: 90%; }
        Choices, Choices:focus { height: 1fr; margin: 1 0; }
        #fit { height: auto; max-height: 50%; color: $foreground; }
        &.-low { Choices { margin: 0; } #fit { max-height: 2; } }
    }
    """

    def __init__(self, rows: Rows, fit: Fit, current: str = "") -> None:
        super().__init__("Models", "Enter loads it   Esc closes")
        self._rows = rows
        self._ask_fit = fit
        self._current = current
        self._all: Sequence[ModelRow] = ()
        self._shown: Sequence[ModelRow] = ()
        self._fits: dict[str, Sequence[str]] = {}

    def body(self) -> Iterable[Widget]:
        """The field, the list, and what is known of the highlighted model."""
        yield Field(placeholder="Part of a name, or the path of a .gguf file")
        yield Choices()
        yield Static("Looking for models…", id="fit", markup=False)

    def on_mount(self) -> None:
        """Ask for the list."""
        self.query_one(Field).focus()
        self.query_one(Choices).can_focus = False
        self._load()

    @work
    async def _load(self) -> None:
        try:
            self._all = await self._rows()
        except LocaldflashError as error:
            self._say(str(error))
            return
        if not self.is_attached:
            return
        self._narrow()
        at = next((i for i, row in enumerate(self._shown) if row.id == self._current), None)
        if at is not None:
            self.query_one(Choices).highlighted = at

    @on(Input.Changed)
    def _narrow(self) -> None:
        """Show the models that match what was typed, unless that is a file's name."""
        typed = self._typed.lower()
        all_of_them = _is_file_name(typed)
        self._shown = [row for row in self._all if all_of_them or typed in f"{row.id} {row.description}".lower()]
        choices = self.query_one(Choices)
        choices.clear_options()
        choices.add_options(two_rows(row.id, self._known(row)) for row in self._shown)
        choices.highlighted = 0 if self._shown else None
        if self._all and not self._shown:
            self._say(f"No model is called that: {self._typed}")

    @property
    def _typed(self) -> str:
        return self.query_one(Field).value.strip()

    def _known(self, row: "ModelRow") -> str:
        here = "on this machine" if row.here else "not downloaded"
        state = "loaded now" if row.id == self._current else here if row.runs else "no backend runs it yet"
        return " · ".join(part for part in (state, row.memory and f"about {row.memory}", row.description) if part)

    @on(OptionList.OptionHighlighted)
    def _rests_on(self) -> None:
        if row := self._highlighted:
            self._find_fit(row)

    @property
    def _highlighted(self) -> "ModelRow | None":
        at = self.query_one(Choices).highlighted
        return None if at is None or at >= len(self._shown) else self._shown[at]

    @work(exclusive=True, group="fit")
    async def _find_fit(self, row: "ModelRow") -> None:
        if not row.runs:
            self._say(_not_yet(row))
            return
        if row.id not in self._fits:
            self._say(_how_to_get(row), "Does it fit? …")
            await asyncio.sleep(REST)
            try:
                self._fits[row.id] = await self._ask_fit(row.id)
            except LocaldflashError as error:
                self._fits[row.id] = [str(error)]
        if self.is_attached and row == self._highlighted:
            self._say(_how_to_get(row), *self._fits[row.id])

    def action_move(self, rows: int) -> None:
        """Move the highlight while the field has the focus."""
        self.query_one(Choices).move(rows)

    @on(Input.Submitted)
    def _entered(self) -> None:
        if self._typed.startswith("hf:"):
            self.dismiss(self._typed)
        elif _is_file_name(self._typed):
            self._take_file(Path(self._typed).expanduser().absolute())
        else:
            self._take(self._highlighted)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(self._shown[event.option_index])

    def _take_file(self, path: Path) -> None:
        if path.is_file():
            self.dismiss(str(path))
        else:
            self._say(f"There is no file at {path}")

    def _take(self, row: "ModelRow | None") -> None:
        if row is None:
            return
        if not row.runs:
            self._say(_not_yet(row))
        elif not row.here:
            self._say(_how_to_get(row), "Run this in another terminal, then choose the model here.")
        else:
            self.dismiss(row.id)

    def _say(self, *lines: str) -> None:
        if self.is_attached:  # it may have been closed while something was looked up
            self.query_one("#fit", Static).update("\n".join(one_line(line) for line in lines if line))


def _is_file_name(typed: str) -> bool:
    return typed.lower().endswith(".gguf") or ("/" in typed and is_gguf(Path(typed).expanduser().absolute()))


def _how_to_get(row: "ModelRow") -> str:
    return "" if row.here else f"Not downloaded; to get it: localdflash models pull {row.id}"


def _not_yet(row: "ModelRow") -> str:
    return f"No backend of localdflash runs {row.id} yet"
