"""The list of earlier chats: search, open, rename, export or delete one.

The caller provides the search. Its answers may come in any order; only the one for the words in the field is shown.
Enter waits for it, so that what is opened is what was searched for. The result says what to do with which chat.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on, work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localdflash.base.errors import LocaldflashError
from localdflash.tui.screens.dialog import ChoiceList, Dialog, Field, one_line, two_rows

if TYPE_CHECKING:
    from localdflash.chat.chat_listing import SessionInfo

Search = Callable[[str], Awaitable[Sequence["SessionInfo"]]]
MAX_ROWS = 200  # rows: more are found with words, not by scrolling
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))  # seconds
_MAX_AGE_IN_WORDS_SECONDS = 15 * 86_400  # seconds, after which a date says more


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """Action on a chat; `text` is the new name for "rename"."""

    action: Literal["open", "rename", "delete", "export"]
    id: int
    text: str = ""


def age(then: float, now: float) -> str:
    """Format the age of a time; both times are Unix seconds."""
    seconds = max(now - then, 0)
    if seconds < 60:
        return "just now"
    if seconds >= _MAX_AGE_IN_WORDS_SECONDS:
        return "on " + time.strftime("%Y-%m-%d", time.localtime(then))
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return _counted(int(seconds // size), unit) + " ago"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class ChatPicker(Dialog[ChatChoice]):
    """Dialog that lists the stored chats under a search field."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("pagedown", "move(8)", show=False),
        Binding("pageup", "move(-8)", show=False),
        Binding("ctrl+r", "rename", show=False, priority=True),
        Binding("ctrl+d", "choose('delete')", show=False, priority=True),
        Binding("ctrl+e", "choose('export')", show=False, priority=True),
    ]
    DEFAULT_CSS = """
    ChatPicker {
        #box { height: 90%; }
        ChoiceList, ChoiceList:focus { height: 1fr; margin: 1 0; }
        &.-low ChoiceList { margin: 0; }
        #name { display: none; }
        &.-naming #name { display: block; }
        &.-naming #words { display: none; }
    }
    """

    def __init__(self, search: Search, words: str = "", *, now: Callable[[], float] = time.time) -> None:
        super().__init__("Chats", "Enter opens  Ctrl+R renames  Ctrl+E exports  Ctrl+D deletes  Esc closes")
        self._search = search
        self._words = words
        self._now = now
        self._found: Sequence[SessionInfo] = ()
        self._answered: str | None = None  # the words that `_found` is the answer to
        self._open_when_found = False

    def body(self) -> Iterable[Widget]:
        """Yield the fields, a line about what was found, and the list."""
        yield Field(self._words, placeholder="Words to look for", id="words", select_on_focus=False)
        yield Field(placeholder="New name", id="name", select_on_focus=False)
        yield Static(id="note", classes="note", markup=False)
        yield ChoiceList()

    def on_mount(self) -> None:
        """Search for the words at once, or show the newest chats."""
        self.query_one("#words").focus()
        self.query_one(ChoiceList).can_focus = False
        self._look()

    @on(Input.Changed, "#words")
    def _look(self) -> None:
        self._open_when_found = False
        self._find(self._wanted)

    @property
    def _wanted(self) -> str:
        return self.query_one("#words", Field).value.strip()

    @work(exclusive=True, group="search")
    async def _find(self, words: str) -> None:
        try:
            found = await self._search(words)
        except LocaldflashError as error:
            found = ()
            note = one_line(str(error))
        else:
            note = _note(words, found)
        if words == self._wanted and words != self._answered:
            self._answered = words
            self._show(found[:MAX_ROWS], note)

    def _show(self, found: Sequence["SessionInfo"], note: str) -> None:
        self._found = found
        now = self._now()
        choices = self.query_one(ChoiceList)
        choices.clear_options()
        choices.add_options(two_rows(one.title or "Untitled", _known(one, now), one.excerpt) for one in found)
        choices.highlighted = 0 if found else None
        self.query_one("#note", Static).update(note)
        if self._open_when_found:
            self.action_choose("open")

    def action_move(self, rows: int) -> None:
        """Move the highlight while the field has the focus."""
        self.query_one(ChoiceList).move(rows)

    def action_choose(self, action: Literal["open", "delete", "export"]) -> None:
        """Close with this action on the highlighted chat."""
        if chat := self._highlighted:
            self.dismiss(ChatChoice(action, chat.id))

    @property
    def _highlighted(self) -> "SessionInfo | None":
        at = self.query_one(ChoiceList).highlighted
        return None if at is None or self.has_class("-naming") else self._found[at]

    @on(Input.Submitted, "#words")
    def _open(self) -> None:
        if self._answered == self._wanted:
            self.action_choose("open")
        else:
            self._open_when_found = True

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if not self.has_class("-naming"):
            self.dismiss(ChatChoice("open", self._found[event.option_index].id))

    def action_rename(self) -> None:
        """Ask for the new name in the search field."""
        if chat := self._highlighted:
            name = self.query_one("#name", Field)
            name.value = chat.title
            name.cursor_position = len(name.value)
            self._ask_name(chat.title)

    def _ask_name(self, title: str | None) -> None:
        """Start asking for a name; with None, go back to searching."""
        self.set_class(title is not None, "-naming")
        self.query_one("#name" if title is not None else "#words").focus()
        note = _note(self._wanted, self._found) if title is None else "Enter gives the chat this name, Esc does not"
        self.query_one("#note", Static).update(note)

    @on(Input.Submitted, "#name")
    def _named(self, event: Input.Submitted) -> None:
        self._ask_name(None)
        chat = self._highlighted
        if chat and event.value.strip():
            self.dismiss(ChatChoice("rename", chat.id, event.value.strip()))

    def action_close(self) -> None:
        """Give up renaming, or close the dialog."""
        if self.has_class("-naming"):
            self._ask_name(None)
        else:
            self.dismiss(None)


def _note(words: str, found: Sequence["SessionInfo"]) -> str:
    if not found:
        return f"No chat has these words: {words}" if words else "No chats yet: each one is kept once it has a message."
    if len(found) >= MAX_ROWS:
        return f"The newest {MAX_ROWS}; type words to find others"
    return _counted(len(found), "chat")


def _known(chat: "SessionInfo", now: float) -> str:
    parts = (age(chat.updated, now), _counted(chat.messages, "message"), chat.model)
    return " · ".join(part for part in parts if part)
