"""A dialog that asks for a text: a name, a path, instructions. Its result is the text, or None."""

from collections.abc import Iterable
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input

from localdflash.text.sanitize import sanitize
from localdflash.tui.screens.dialog import Dialog, Field, TextField


class AskText(Dialog[str]):
    """One field, `lines` high. Enter takes a single line; in a field of several lines it is a line feed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "save", "Save", show=False, priority=True)]
    DEFAULT_CSS = "AskText { #box { max-width: 76; } TextField { margin: 1 0; } Field { margin: 1 0; } }"

    def __init__(self, title: str, value: str = "", *, lines: int = 1, by_itself: bool = False) -> None:
        super().__init__(title, "Enter takes it   Esc cancels" if lines == 1 else "Ctrl+S takes it   Esc cancels")
        self._value = value
        self._lines = lines
        self.by_itself = by_itself

    def body(self) -> Iterable[Widget]:
        """The field."""
        if self._lines == 1:
            yield Field(self._value, select_on_focus=False)
            return
        field = TextField(sanitize(self._value), tab_behavior="focus")
        field.move_cursor(field.document.end)
        field.styles.height = self._lines
        field.styles.max_height = "80h"
        yield field

    @on(Input.Submitted)
    def action_save(self) -> None:
        """Return the text."""
        field = self.query_one(Field) if self._lines == 1 else self.query_one(TextField)
        self.dismiss(field.value if isinstance(field, Field) else field.text)
