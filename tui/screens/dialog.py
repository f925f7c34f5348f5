"""Base classes of the dialogs: a box with a title and a line of keys, and fields that are safe to paste into."""

import time
from collections.abc import Iterable
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.text_area import Edit, EditResult

from localdflash.chat.attachable_files import format_size
from localdflash.text.sanitize import sanitize
from localdflash.tui.pastes import MAX_PASTE_CHARS, Paste
from localdflash.tui.undoable_area import UndoableArea

T = TypeVar("T")

QUIET_SECONDS = 0.5  # without a key; a user who is still typing has not read the dialog


class Dialog(ModalScreen[T | None]):
    """Box over the chat; the result is None after Esc. `waits_for_quiet`: ignore keys until a pause."""

    waits_for_quiet = False

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (60, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (14, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", show=False)]
    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        #box {
            width: 95%; max-width: 96; height: auto; max-height: 90%; padding: 0 1;
            background: $surface; border: round $border;
        }
        #title { height: 1; text-style: bold; color: $foreground; }
        #keys { color: $text-muted; }
        .note { color: $text-muted; }
        .problem { color: $error; }
        Input, Input:focus { height: 1; padding: 0; border: none; background: $panel; }
        Input > .input--placeholder { color: $text-muted; }
        TextArea, TextArea:focus { padding: 0; border: none; background: $panel; }
        OptionList, OptionList:focus {
            padding: 0; border: none; background-tint: $foreground 0%; text-wrap: nowrap; text-overflow: ellipsis;
        }
        OptionList > .option-list--option-highlighted {  /* also while a field moves it */
            color: $block-cursor-foreground; background: $block-cursor-background;
        }
        OptionList, VerticalScroll, TextArea { scrollbar-size-vertical: 1; }
        &.-narrow #box, &.-low #box { width: 100%; height: 100%; max-height: 100%; padding: 0; border: none; }
        &.-low #title, &.-low #keys { display: none; }
    }
    """

    def __init__(self, title: str, keys: str) -> None:
        super().__init__()
        self._heading = title
        self._keys = keys
        self._accepts_keys, self._last_key = False, time.monotonic()

    def accept_key(self) -> bool:
        """Note the time of a key press; return whether the dialog accepts the key. Call it once per key."""
        quiet, self._last_key = time.monotonic() - self._last_key, time.monotonic()
        self._accepts_keys |= quiet >= QUIET_SECONDS or not self.waits_for_quiet
        return self._accepts_keys

    def compose(self) -> ComposeResult:
        """Yield the title, the body and the keys."""
        with Vertical(id="box"):
            yield Static(one_line(self._heading), id="title", markup=False)
            yield from self.body()
            yield Static(self._keys, id="keys", markup=False)

    def body(self) -> Iterable[Widget]:
        """Return the widgets between the title and the keys."""
        raise NotImplementedError

    def dismiss(self, result: T | None = None) -> AwaitComplete:
        """Close with a result. Do nothing if it is closed already, for example if two keys arrive together."""
        return super().dismiss(result) if self.app.screen is self else AwaitComplete()

    def action_close(self) -> None:
        """Close without a change."""
        self.dismiss(None)


class ListDialog(Dialog[T]):
    """Dialog with a list under a field that keeps the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"move({rows})", show=False)
        for key, rows in (("down", 1), ("up", -1), ("pagedown", 8), ("pageup", -8))
    ]
    DEFAULT_CSS = """
    ListDialog {
        #box { height: 90%; }
        ChoiceList, ChoiceList:focus { height: 1fr; margin: 1 0; }
        &.-low ChoiceList { margin: 0; }
    }
    """

    def on_mount(self) -> None:
        """Focus the field."""
        self.query(Field).first().focus()
        self.choices.can_focus = False

    @property
    def choices(self) -> "ChoiceList":
        """Return the list."""
        return self.query_one(ChoiceList)

    def action_move(self, rows: int) -> None:
        """Move the highlight while the field has the focus."""
        self.choices.move(rows)


class Field(Input):
    """Single-line field; control characters in pasted text are removed."""

    def validate_value(self, value: str) -> str:
        """Sanitise the value."""
        return one_line(value)


class TextField(UndoableArea):
    """Multi-line field; control characters in pasted text are removed."""

    def edit(self, edit: Edit) -> EditResult:
        """Sanitise the inserted text."""
        edit.text = sanitize(edit.text)
        return super().edit(edit)

    def on_paste(self, event: events.Paste) -> None:
        """Refuse a paste of which only the beginning was read."""
        if isinstance(event, Paste) and event.length > MAX_PASTE_CHARS:
            event.prevent_default()
            limit, size = format_size(MAX_PASTE_CHARS), format_size(event.length)
            self.notify(f"paste too large ({size}, at most {limit})", markup=False)


class ChoiceList(OptionList):
    """List whose rows are cut at its edge and never parsed as markup."""

    def __init__(self) -> None:
        super().__init__(markup=False)

    def show(self, rows: Iterable[Content]) -> None:
        """Replace the rows and highlight the first one."""
        self.clear_options()
        self.add_options(rows)
        self.highlighted = 0 if self.option_count else None

    def move(self, rows: int) -> None:
        """Move the highlight by `rows`, without wrapping."""
        if self.option_count:
            at = -1 if self.highlighted is None else self.highlighted
            self.highlighted = min(max(at + rows, 0), self.option_count - 1)


def one_line(text: str) -> str:
    """Sanitise text and join its lines."""
    return sanitize(text.strip("\r\n")).replace("\n", " ").replace("\t", " ")


def indented(text: str, width: int, cells: int) -> Content:
    """Return muted text wrapped to a width, each row indented by `cells`."""
    rows = Content(one_line(text)).wrap(max(width - cells, 1))
    return Content("\n").join(Content.styled(" " * cells + row.plain.rstrip(), "$text-muted") for row in rows)


def two_rows(first: str, second: str, third: str = "") -> Content:
    """Return a list entry: its name, and a muted description below."""
    rows = [Content(one_line(first))]
    rows += [Content.styled(f"  {one_line(text)}", "$text-muted") for text in (second, third) if text]
    return Content("\n").join(rows)
