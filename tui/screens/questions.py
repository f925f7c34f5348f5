"""Dialogs that ask one question: a choice whose last answer is the safe one, a text, or a role."""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, NamedTuple

from textual import events, on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Input, OptionList, Static

from localdflash.text.sanitize import sanitize
from localdflash.tui.screens.dialog import ChoiceList, Dialog, Field, TextField, one_line, two_rows


class Option(NamedTuple):
    """Answer to a question: its key and its label."""

    key: str
    label: str


class QuestionDialog(Dialog[str]):
    """Question with a button per answer. The result is the answer's key, "" for the last one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "app.focus_previous", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]
    DEFAULT_CSS = """
    QuestionDialog {
        #box { max-width: 64; }
        #title, &.-low #title { display: block; height: auto; max-height: 2; }
        #lines { height: auto; max-height: 1fr; margin: 1 0; }
        #answers { height: 1; }
        Button { width: auto; min-width: 1; margin: 0 2 0 0; }
        &.-low #lines { height: 1fr; margin: 0; }
        &.-narrow Button { margin: 0 1 0 0; }
    }
    """

    def __init__(self, title: str, lines: Sequence[str], *options: Option) -> None:
        super().__init__(title, "   ".join(f"{one.key.upper()} {one_line(one.label)}" for one in options))
        self._lines, self._options = lines, options
        self.waits_for_quiet = True

    def body(self) -> Iterable[Widget]:
        """Yield the lines and the buttons."""
        text = "\n".join(one_line(line) for line in self._lines)
        yield VerticalScroll(Static(text, markup=False), id="lines", can_focus=False)
        buttons = (Button(Content(one_line(one.label)), id=f"key-{one.key}", compact=True) for one in self._options)
        yield Horizontal(*buttons, id="answers")

    def on_mount(self) -> None:
        """Focus the safe answer."""
        self.query(Button).last().focus()

    def on_key(self, event: events.Key) -> None:
        """Submit the answer whose key was pressed."""
        key = event.key.lower()
        if key in (one.key for one in self._options):
            event.stop()
            self.answer(key)

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self.answer((event.button.id or "").removeprefix("key-"))

    def answer(self, key: str) -> None:
        """Close with an answer."""
        self.dismiss("" if key == self._options[-1].key else key)

    def action_close(self) -> None:
        """Close with the safe answer (Esc)."""
        self.dismiss("")

    def action_scroll(self, rows: int) -> None:
        """Scroll the lines, if they do not fit."""
        self.query_one("#lines").scroll_relative(y=rows, animate=False)


class TextDialog(Dialog[str]):
    """Dialog with one text field, `lines` high. Enter submits a single line."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+s", "save", "Save", show=False, priority=True)]
    DEFAULT_CSS = "TextDialog { #box { max-width: 76; } TextField { margin: 1 0; } Field { margin: 1 0; } }"

    def __init__(self, title: str, value: str = "", *, lines: int = 1, waits_for_quiet: bool = False) -> None:
        super().__init__(title, "Enter confirms   Esc cancels" if lines == 1 else "Ctrl+S confirms   Esc cancels")
        self._value, self._lines, self.waits_for_quiet = value, lines, waits_for_quiet

    def body(self) -> Iterable[Widget]:
        """Yield the field."""
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


class RolePicker(Dialog[str]):
    """Dialog that lists the roles and previews the highlighted one. The result is a name, or `none`."""

    DEFAULT_CSS: ClassVar[str] = """
    RolePicker {
        ChoiceList, ChoiceList:focus { height: auto; max-height: 14; margin: 1 0; }
        #preview { height: auto; max-height: 12; border-top: solid $border-blurred; }
        &.-low { ChoiceList { margin: 0; height: 1fr; } #preview { display: none; } }
    }
    """

    def __init__(self, roles: Mapping[str, str]) -> None:
        super().__init__("Roles", "Enter chooses   Tab scrolls the text   Esc closes")
        self._roles = {"none": "No instructions before the chat.", **roles}

    def body(self) -> Iterable[Widget]:
        """Yield the list and the text."""
        yield ChoiceList()
        with VerticalScroll(id="preview"):
            yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        """Show the roles."""
        choices = self.query_one(ChoiceList)
        choices.add_options(two_rows(name, text.strip().partition("\n")[0]) for name, text in self._roles.items())
        choices.highlighted = 0
        choices.focus()

    @on(OptionList.OptionHighlighted)
    def _preview(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#text", Static).update(sanitize(self._roles[self._role_at(event.option_index)]))

    @on(OptionList.OptionSelected)
    def _submit_option(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._role_at(event.option_index))

    def _role_at(self, index: int) -> str:
        return list(self._roles)[index]
