"""Field where messages are typed, with its keys, pastes and attachments. A message that cannot be sent is put back."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from localdflash.base.errors import UsageError
from localdflash.chat.attachable_files import AttachableFiles, format_size
from localdflash.chat.mentions import attach_mentions, find_mentions, possible_spellings, split_name
from localdflash.chat.messages import Attachment
from localdflash.chat.shell_command import parse_command
from localdflash.text.sanitize import printable, sanitize
from localdflash.tui import commands
from localdflash.tui.history import History
from localdflash.tui.pastes import MAX_PASTE_CHARS, Paste, clean_paste, is_long, normalise_line_ends
from localdflash.tui.styled_lines import cut
from localdflash.tui.suggesting import ACTION_BY_KEY, SuggestingArea
from localdflash.tui.suggestions import ArgumentChoices

MAX_PROMPT_ROWS = 8
_NEW_LINE_KEYS = ("shift+enter", "alt+enter", "ctrl+j", "ctrl+enter", "shift+\r")


class Prompt(SuggestingArea):
    """Input field for messages; the widgets in `above` are laid out above it."""

    DEFAULT_CSS = """
    Prompt {
        height: auto;
        padding: 0 1;
        scrollbar-size-vertical: 1;
        background: $surface;
        &, &:focus { border: none; }
    }
    """

    @dataclass
    class Submitted(Message):
        """Posted when a message or a command is sent."""

        text: str
        attachments: tuple[Attachment, ...] = ()

    class EditLast(Message):
        """Posted when Up is pressed in an empty prompt, to edit the last message."""

    @dataclass
    class Notice(Message):
        """Posted with a line for the user: a notice, or the reason why input was refused."""

        line: str
        is_error: bool = True

    def __init__(
        self,
        files: AttachableFiles,
        history: History,
        *,
        placeholder: str = "",
        choices: ArgumentChoices = lambda command: (),
        editable: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the field. `choices` maps a command to its arguments; `editable`: is there a message to edit?"""
        super().__init__(files, choices, placeholder)
        self._history, self._editable, self._chips = history, editable, Attachments()
        self._refused_text = ""  # text whose files were refused; sending it again leaves these files out
        self._sending = asyncio.Lock()

    @property
    def above(self) -> tuple[Widget, ...]:
        """Return the widgets to show above the prompt: attachments and suggestions."""
        return self._chips, self.suggestions

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Return the attachments of the next message, without files mentioned in its text."""
        return self._chips.items

    def put_back(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Put a message back into the prompt, before the text being typed."""
        named = [one.name for one in attachments if one.kind in ("file", "symbol")]
        spellings = {spelling for name in named for spelling in possible_spellings(name)}
        mentioned = {one.name for one in find_mentions(text, lambda path: False, spellings)}
        self.chosen_mentions |= spellings
        pasted = {chip.name: chip.text for chip in self.attachments if chip.kind == "paste"}
        for one in attachments:
            if one.name not in mentioned:
                is_taken = pasted.get(one.name, one.text) != one.text
                self._chips.add(replace(one, name=self._next_paste_name()) if is_taken else one)
        if text:
            self.put_all(f"{text}\n{self.text}" if self.text else text)

    def attach(self, path: str) -> None:
        """Attach a file, or a part of it (`box.py:12-40`)."""
        self.run_worker(self._attach_file(path), group="attach")

    def attach_output(self, output: Attachment) -> None:
        """Attach a program's output."""
        self._chips.add(output)

    def detach(self) -> None:
        """Drop all attachments."""
        self._chips.items = ()

    def render_line(self, y: int) -> Strip:
        """Draw a blank row if there is no room: Textual cannot wrap a placeholder into zero cells."""
        return super().render_line(y) if self.content_size.width > 0 else Strip.blank(self.size.width)

    async def on_key(self, event: events.Key) -> None:
        """Handle keys of the prompt and editing keys at once: Textual would handle editing keys after later letters."""
        if (self.suggestions.display and self.handle_suggestion_key(event.key)) or self._handle_key(event.key):
            event.stop()
            event.prevent_default()
        elif action := ACTION_BY_KEY.get(event.key):
            event.stop()
            event.prevent_default()
            await self.run_action(action)

    def _handle_key(self, key: str) -> bool:
        """Handle the prompt's own keys; return whether the key was used."""
        if key in _NEW_LINE_KEYS:
            self.replace("\n", *self.selection, maintain_selection_offset=False)
        elif key == "enter":
            self._enter()
        elif key == "up" and self.navigator.is_first_wrapped_line(self.cursor_location):
            return self._up()
        elif key == "down" and self.navigator.is_last_wrapped_line(self.cursor_location):
            return self._recall(self._history.newer(self.text), first_row=False)
        elif key == "backspace" and not self.text and self.attachments:
            self._chips.items = self.attachments[:-1]
        elif key == "ctrl+d" and not self.text:
            self.app.run_worker(self.app.action_quit())
        else:
            return False
        return True

    def _enter(self) -> None:
        row, column = self.cursor_location
        if self.selection.is_empty and self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        self._send()

    def _up(self) -> bool:
        if not self.text and self._editable():
            self.post_message(self.EditLast())
            return True
        return self._recall(self._history.older(self.text), first_row=True)

    def _recall(self, text: str | None, *, first_row: bool) -> bool:
        """Show a message of the history; the cursor is placed so that the key pressed again recalls the next one."""
        if text is None:
            return False
        self.put_all(text)
        if first_row:
            self.move_cursor((0, len(self.document.get_line(0))))
        return True

    def action_paste(self) -> None:
        """Paste from the app's own clipboard."""
        self._take_paste(self.app.clipboard)

    def _send(self) -> None:
        text, attachments = self.text, self.attachments
        self.close_suggestions()
        try:
            command = commands.parse(text.rstrip())
        except UsageError as error:
            self.post_message(self.Notice(str(error)))
            return
        if command is not None:
            text, attachments = text.rstrip(), ()
        elif parse_command(text):
            attachments = ()
        elif not text.strip() and not attachments:
            return
        else:
            self.detach()
        mentions, self.chosen_mentions = self.chosen_mentions, set()
        self.put_all("")
        if self._sending.locked() or (command is None and "@" in text and not parse_command(text)):
            self.run_worker(self._send_with_files(text, attachments, mentions), group="send")
        else:
            self._submit(text, attachments)

    async def _send_with_files(self, text: str, attachments: Sequence[Attachment], mentions: set[str]) -> None:
        """Read the mentioned files, then send; messages keep their order."""
        async with self._sending:
            files = await asyncio.to_thread(attach_mentions, text, self.files, mentions)
            if files.refused and text != self._refused_text:
                self._refused_text = text
                self.chosen_mentions |= mentions
                self.put_back(text, attachments)
                self.post_message(self.Notice(f"{'; '.join(files.refused)}; Enter again sends the message without it"))
                return
            named = {one.name: one for one in (*attachments, *files.attachments)}
            self._submit(text, tuple(named.values()))

    def _submit(self, text: str, attachments: Sequence[Attachment]) -> None:
        self._refused_text = ""
        self._history.add(text)
        self.post_message(self.Submitted(text, tuple(attachments)))

    async def _attach_file(self, name: str) -> None:
        try:
            attachment = await asyncio.to_thread(self._read_file, name)
        except UsageError as error:
            self.post_message(self.Notice(str(error)))
            return
        self._chips.add(attachment)

    def _read_file(self, name: str) -> Attachment:
        """Read a file by its path, which may begin with `@`, or by its mention."""
        path, part = split_name(name, self.files.exists)
        if not self.files.exists(path):
            path, part = split_name(name.removeprefix("@").strip('"'), self.files.exists)
        return self.files.read(path, part)

    def on_paste(self, event: events.Paste) -> None:
        """Insert, attach or refuse what the terminal pastes."""
        event.stop()
        event.prevent_default()
        if isinstance(event, Paste):
            self._take_paste(event.raw, event.length)
        else:
            self._take_paste(event.text)

    def _take_paste(self, text: str, length: int = 0) -> None:
        if (length := length or len(text)) > MAX_PASTE_CHARS:
            limit, size = format_size(MAX_PASTE_CHARS), format_size(length)
            reason = f"paste too large ({size}, at most {limit}); save it to a file and mention parts of it"
            self.post_message(self.Notice(reason))
            return
        if is_long(text):
            self._chips.add(Attachment("paste", self._next_paste_name(), normalise_line_ends(text)))
            return
        plain, hidden = clean_paste(text)
        self.put(plain, *self.selection)
        if hidden:
            what = "1 invisible character" if hidden == 1 else f"{hidden} invisible characters"
            line = f"{what} spelled out in the pasted text"
            self.post_message(self.Notice(line, is_error=False))

    def _next_paste_name(self) -> str:
        numbers = [int(one.name.split()[-1]) for one in self.attachments if one.kind == "paste"]
        return f"pasted {max(numbers, default=0) + 1}"

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of text rows, at most half of the screen."""
        limit = max(1, min(MAX_PROMPT_ROWS, viewport.height // 2))
        return min(super().get_content_height(container, viewport, width), limit)


class Attachments(Widget):
    """One-line list of attachment names and sizes, hidden while empty. Names that do not fit are counted."""

    DEFAULT_CSS = "Attachments { display: none; height: 1; width: 1fr; padding: 0 1; color: $foreground; }"

    items: reactive[tuple[Attachment, ...]] = reactive(())

    def watch_items(self, items: tuple[Attachment, ...]) -> None:
        """Show the row while there are attachments."""
        self.display = bool(items)

    def add(self, attachment: Attachment) -> None:
        """Add an attachment; an earlier attachment of the same name is replaced."""
        self.items = (*(one for one in self.items if one.name != attachment.name), attachment)

    def render(self) -> Content:
        """Return as many names as fit, and the number of further names."""
        width = self.size.width
        chips = [f" {attachment_label(one)} " for one in self.items]
        shown, used = list[str](), 0
        for number, chip in enumerate(chips, 1):
            if used + cell_len(chip) + len(_more(len(chips) - number)) > width:
                break
            shown.append(chip)
            used += cell_len(chip) + 1
        if not shown and chips:
            shown = [cut(chips[0], max(width - len(_more(len(chips) - 1)), 2))]
        parts = [Content.styled(chip, "$foreground on $panel") for chip in shown]
        if more := _more(len(chips) - len(shown)).strip():
            parts.append(Content.styled(more, "$text-muted"))
        return Content(" ").join(parts)


def attachment_label(attachment: Attachment) -> str:
    """Format an attachment, such as `pasted 1: 120 lines` or `box.py 1.2 KB`."""
    text, name = attachment.text, printable(sanitize(attachment.name))
    lines = text.count("\n") + (not text.endswith("\n"))
    if attachment.kind != "paste":
        return f"{name} {format_size(len(text.encode('utf-8', 'replace')))}"
    return f"{name}: {lines:,} lines" if lines > 1 else f"{name}: {len(text):,} characters"


def _more(count: int) -> str:
    return f" +{count} more" if count else ""
