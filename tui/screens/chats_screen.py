"""Dialog to search earlier chats, and to open, rename, export or delete a chat."""

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from textual import on, work
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from localdflash.base.errors import LocaldflashError
from localdflash.tui.screens.dialog import ChoiceList, Field, ListDialog, one_line, two_rows

if TYPE_CHECKING:
    from localdflash.chat.chat_listing import SessionInfo

Search = Callable[[str], Awaitable[Sequence["SessionInfo"]]]
Action = Literal["open", "rename", "delete", "export"]
MAX_ROWS = 200
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))  # seconds
_MAX_AGE_IN_WORDS_SECONDS = 15 * 86_400  # older chats show their date


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """Action on a chat, and the words in the search field."""

    action: Action
    id: int
    words: str = ""


def age(then: float, now: float) -> str:
    """Format the age of a time; both times are Unix seconds."""
    seconds = max(now - then, 0)
    if seconds < 60:
        return "just now"
    if seconds >= _MAX_AGE_IN_WORDS_SECONDS:
        return "on " + time.strftime("%Y-%m-%d", time.localtime(then))
    size, unit = next((size, unit) for size, unit in _UNITS if seconds >= size)
    return _pluralise(int(seconds // size), unit) + " ago"


def _pluralise(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


class ChatPicker(ListDialog[ChatChoice]):
    """Dialog that lists the stored chats under a search field. Enter waits for the result of the newest search."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, f"choose('{action}')", show=False, priority=True)
        for key, action in (("ctrl+r", "rename"), ("ctrl+d", "delete"), ("ctrl+e", "export"))
    ]

    def __init__(self, search: Search, words: str = "", *, now: Callable[[], float] = time.time) -> None:
        super().__init__("Chats", "Enter opens  Ctrl+R renames  Ctrl+E exports  Ctrl+D deletes  Esc closes")
        self._search, self._words, self._now = search, words, now
        self._found: Sequence[SessionInfo] = ()
        self._searched: str | None = None  # the words whose results are in `_found`
        self._open_when_found = False

    def body(self) -> Iterable[Widget]:
        """Yield the field, a note, and the list."""
        yield Field(self._words, placeholder="Words to look for", select_on_focus=False)
        yield Static(id="note", classes="note", markup=False)
        yield ChoiceList()

    def on_mount(self) -> None:
        """Search for the words at once, or show the newest chats."""
        self._start_search()

    @on(Input.Changed)
    def _start_search(self) -> None:
        self._open_when_found = False
        self._find(self._query)

    @property
    def _query(self) -> str:
        return self.query_one(Field).value.strip()

    @work(exclusive=True, group="search")
    async def _find(self, words: str) -> None:
        chats: Sequence[SessionInfo] = ()
        try:
            chats = await self._search(words)
        except LocaldflashError as error:
            note = one_line(str(error))
        else:
            note = _note(words, chats)
        if words != self._query or words == self._searched:
            return
        self._searched, self._found, now = words, chats[:MAX_ROWS], self._now()
        self.choices.show(two_rows(one.title or "Untitled", _describe(one, now), one.excerpt) for one in self._found)
        self.query_one("#note", Static).update(note)
        if self._open_when_found:
            self.action_choose("open")

    def action_choose(self, action: Action) -> None:
        """Close with this action on the highlighted chat."""
        if (at := self.choices.highlighted) is not None:
            self.dismiss(ChatChoice(action, self._found[at].id, self._query))

    @on(Input.Submitted)
    def _open(self) -> None:
        if self._searched == self._query:
            self.action_choose("open")
        else:
            self._open_when_found = True

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.action_choose("open")


def _note(words: str, chats: Sequence["SessionInfo"]) -> str:
    if not chats:
        return f"No chat has these words: {words}" if words else "No chats yet: a chat is saved once it has a message."
    if len(chats) >= MAX_ROWS:
        return f"The newest {MAX_ROWS}; type words to find others"
    return _pluralise(len(chats), "chat")


def _describe(chat: "SessionInfo", now: float) -> str:
    parts = (age(chat.updated, now), _pluralise(chat.messages, "message"), chat.model)
    return " · ".join(part for part in parts if part)
