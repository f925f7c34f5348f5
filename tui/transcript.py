"""Widget that shows the whole conversation, with keys for its messages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.message import Message as Event
from textual.selection import Selection
from textual.timer import Timer

from localdflash.chat.messages import Message, StepRecord
from localdflash.tui import highlight
from localdflash.tui.column import RowPosition
from localdflash.tui.entry import ChatEntry
from localdflash.tui.painting import LINK
from localdflash.tui.scroller import Scroller

_FRAME_SECONDS = 1 / 30  # interval of repaints of a streaming answer
_QUEUE_DIVISOR = 3  # a frame shows 1/3 of the queued text, which smooths bursts
_WORD = re.compile(r"\w+")
_LINE = re.compile(r"[^\n]+")


class Transcript(Scroller, can_focus=True):
    """Widget that shows the conversation and streams the answer being generated."""

    DEFAULT_CSS = """
    Transcript {
        overflow-x: hidden; overflow-y: scroll; background: $background; scrollbar-size-vertical: 1;
        scrollbar-background: $background; scrollbar-background-hover: $background;
        scrollbar-background-active: $background;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("end", "to_end", "End", show=False),
        Binding("home", "to_start", "Start", show=False),
        Binding("k,left_square_bracket", "highlight(-1)", "Previous message", show=False),
        Binding("j,right_square_bracket", "highlight(1)", "Next message", show=False),
        Binding("c", "copy_message", "Copy", show=False),
        *(Binding(str(n), f"copy_block({n})", f"Copy code block {n}", show=False) for n in range(1, 10)),
        Binding("e", "act('edit')", "Edit", show=False),
        Binding("r", "act('retry')", "Retry", show=False),
        Binding("f", "act('fork')", "Fork", show=False),
        Binding("enter", "toggle_thoughts", "Unfold thoughts", show=False),
    ]

    @dataclass
    class CopyRequest(Event):
        """Posted to copy `text` to the clipboard; `what` describes it, such as "message 3"."""

        text: str
        what: str

    @dataclass
    class LinkClick(Event):
        """Posted when an http, https or mailto link is clicked."""

        url: str

    @dataclass
    class ActionRequest(Event):
        """Posted when the key of "edit", "retry" or "fork" is pressed on the message at `index`, from 0."""

        index: int
        action: str

    def __init__(self) -> None:
        super().__init__()
        self._queue = ""  # received text that is not shown yet
        self._frames: Timer | None = None
        self._find_words = ""
        self._found: tuple[int, tuple[int, int]] | None = None  # index and offsets of the match
        self._note_expected = False

    def show(self, messages: Sequence[Message]) -> None:
        """Show a conversation, scrolled to its end."""
        self._queue = ""
        self._highlighted = self._found = None
        if self.is_attached and self.text_selection:
            self.screen.clear_selection()
        self._column.show(messages)
        self.action_to_end()

    def add(self, message: Message) -> None:
        """Append a message and scroll to it."""
        self._flush()
        self._note_expected = False
        self._column.add(message)
        self.action_to_end()

    def replace_last(self, message: Message) -> None:
        """Replace the last message."""
        self._queue = ""
        if not self._last_message():
            self.add(message)
            return
        with self._keeping_position():
            self._column.replace_last(message)

    def expect_note(self) -> None:
        """Scroll to the next note when it is added, because it reports the result of a user's action."""
        self._note_expected = True

    def note(self, text: str, kind: str = "note") -> None:
        """Add a note under the last message; `kind` is "note" or "error"."""
        with self._keeping_position():
            if not self._column.entries:
                self._column.add(None)
            self._column.entries[-1].notes.append((text, kind))
            self._lay_out_last()
        if self._note_expected:
            self._note_expected = False
            self.action_to_end()

    def feed(self, text: str, step: StepRecord | None = None) -> None:
        """Append text to the streaming answer; start an answer if the last message is not one."""
        last = self._last_message()
        if last is None or not last.is_answer:
            self.add(Message("assistant", ""))
            last = self._column.entries[-1]
        last.grow("", step)
        self._queue += text
        if self._frames:
            self._frames.resume()

    def finish(self, message: Message) -> None:
        """Show the complete answer at once."""
        rest, self._queue = self._queue, ""
        last = self._last_message()
        if last is None or not last.is_answer:
            self.add(message)
            return
        with self._keeping_position():
            last.finish(message, rest)
            self._lay_out_last()

    def shown_text(self) -> str:
        """Return the text of the last message, as far as it is shown."""
        last = self._last_message()
        return last.text if last else ""

    def code_blocks(self) -> list[str]:
        """Return the code in the last answer's fences, unchanged."""
        answer = next((entry for entry in reversed(self._column.entries) if entry.is_answer), None)
        return answer.code_blocks() if answer else []

    def _last_message(self) -> ChatEntry | None:
        entries = self._column.entries
        return entries[-1] if entries and entries[-1].message else None

    def on_mount(self) -> None:
        """Create the timer, which runs only while text waits."""
        self._frames = self.set_interval(_FRAME_SECONDS, self._frame, pause=not self._queue)

    def _frame(self) -> None:
        """Show the text that is due, and stop the timer when the queue is empty."""
        try:
            self._grow()
        except Exception as error:  # must not end the chat
            self.log.error(f"transcript: {error!r}")
        if not self._queue and self._frames:
            self._frames.pause()

    def _grow(self) -> None:
        due = len(self._queue) if self.app.animation_level == "none" else -(-len(self._queue) // _QUEUE_DIVISOR)
        text, self._queue = self._queue[:due], self._queue[due:]
        last = self._last_message()
        if text and last:
            last.grow(text)
            self._last_grew()

    def _flush(self) -> None:
        """Show all queued text before another message is appended."""
        last = self._last_message()
        if self._queue and last:
            last.grow(self._queue)
            self._lay_out_last()
        self._queue = ""

    def _last_grew(self) -> None:
        """Lay out the last entry and draw what changed."""
        if not self._rows:
            return
        index = len(self._column.entries) - 1
        before, position = self._column.height, self._kept_position()
        changed = self._column.lay_out(index)
        if self._column.height != before:
            self._arrange(position)
        self._draw(self._column.top(index) + changed.start)
        if highlight.missing_languages:
            self._load_missing_lexers()

    def _lay_out_last(self) -> None:
        if self._rows:
            self._column.lay_out(len(self._column.entries) - 1)

    def action_to_start(self) -> None:
        """Scroll to the first message."""
        self.following = False
        self._arrange(RowPosition(0, 0, above=1 << 30))
        self.refresh()

    def action_highlight(self, step: int) -> None:
        """Highlight the previous (-1) or next (+1) message; at first, the last one."""
        count = len(self._column.entries)
        if not count:
            return
        index = count - 1 if self._highlighted is None else max(0, min(self._highlighted + step, count - 1))
        self._highlighted = index
        top = self._column.top(index)
        if not self.scroll_offset.y <= top < self.scroll_offset.y + self._rows:
            self.following = False
            self._arrange(RowPosition(index, 0, above=1 << 30))
        self.refresh()

    def find(self, words: str) -> tuple[int, int] | None:
        """Select the match above the selected one, else the last; return its number, from 1, and the count, or None."""
        if words != self._find_words:
            self._find_words, self._found = words, None
        pattern = re.compile(re.escape(words), re.IGNORECASE)
        matches = [
            (index, match.span())
            for index in range(len(self._column.entries))
            for match in pattern.finditer(self._column.text_between(index, 0, None))
        ]
        self._note_expected = False
        if not matches:
            return None
        above = [match for match in matches if self._found is None or match < self._found]
        self._found = (above or matches)[-1]
        index, (start, end) = self._found
        self.following = False
        self._column.lay_out(index)
        self._arrange(RowPosition(index, start, above=self._rows // 3))
        self.screen.selections = {self: Selection(Offset(start, index), Offset(end, index))}
        return matches.index(self._found) + 1, len(matches)

    def _current_message(self) -> ChatEntry | None:
        """Return the highlighted message, else the last one."""
        return self._last_message() if self._highlighted is None else self._column.entries[self._highlighted]

    def action_copy_message(self) -> None:
        """Post the text of the highlighted or else the last message, as received, for copying."""
        if (entry := self._current_message()) and entry.message:
            text = entry.text if entry.is_growing else entry.message.text
            self.post_message(self.CopyRequest(text, f"message {entry.number}"))

    def action_copy_block(self, number: int) -> None:
        """Post a code block of the highlighted message for copying."""
        if entry := self._current_message():
            blocks = entry.code_blocks()
            if number <= len(blocks):
                self.post_message(self.CopyRequest(blocks[number - 1], f"code block {number}"))
                return
        self.app.bell()

    def action_act(self, action: str) -> None:
        """Post a request to run an action on the highlighted message, or else on the last one."""
        if (entry := self._current_message()) and entry.number:
            self.post_message(self.ActionRequest(entry.number - 1, action))

    def action_toggle_thoughts(self) -> None:
        """Unfold or fold the thinking in the highlighted message, or else in the last one."""
        if (entry := self._current_message()) and self._rows:
            with self._keeping_position():
                entry.thoughts_inverted = not entry.thoughts_inverted
                entry.drop_layout()

    def on_click(self, event: events.Click) -> None:
        """Post a clicked link; select a word on a double click, a line on a triple click."""
        url = event.style.meta.get(LINK) if event.style else None
        if event.chain == 1 and url:
            self.post_message(self.LinkClick(url))
        elif event.chain in (2, 3):
            event.stop()  # Textual would select the whole transcript
            self._select_around(event.screen_x, event.screen_y, _WORD if event.chain == 2 else _LINE)

    def _select_around(self, x: int, y: int, what: re.Pattern[str]) -> None:
        _, at = self.screen.get_widget_and_offset_at(x, y)
        if at is None or at.y >= len(self._column.entries):
            return
        text = self._column.text_between(at.y, 0, None)
        match = next((one for one in what.finditer(text) if one.start() <= at.x < one.end()), None)
        if match:
            self.screen.selections = {self: Selection(Offset(match.start(), at.y), Offset(match.end(), at.y))}

    def text_select_all(self) -> None:
        """Disable Textual's selection of the whole widget on a double click."""

    @property
    def select_container(self) -> "Transcript":
        """Return the transcript itself, so that a triple click does not select its container."""
        return self
