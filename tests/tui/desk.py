"""Prompt on an otherwise empty screen, and the messages that it posts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.pilot import Pilot
from textual.widgets import Static

from localdflash.chat.attachable_files import AttachableFiles
from localdflash.tui.commands import COMMANDS
from localdflash.tui.history import History
from localdflash.tui.prompt_field import Prompt
from localdflash.tui.suggestions import Suggestions
from tests.tui.stage import Stage, wait_until


class Desk(Stage):
    """App with only a prompt, which records the posted messages, and the command keys that reach the app."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(key, f"note('{key}')") for command in COMMANDS for key in command.keys),
        Binding("pageup,pagedown", "note('page')"),
    ]

    def __init__(
        self,
        folder: Path,
        history: History | None = None,
        *,
        choices: Callable[[str], Sequence[str]] = lambda command: (),
        editable: bool = True,
    ) -> None:
        super().__init__()
        self.folder = folder
        self.files = AttachableFiles(folder)
        self.prompt = Prompt(
            self.files,
            history or History(None),
            placeholder="Ask something",
            choices=choices,
            editable=lambda: editable,
        )
        self.prompt.cursor_blink = False
        self.sent: list[Prompt.Submitted] = []
        self.refused: list[str] = []
        self.notices: list[str] = []
        self.edits = 0
        self.keys: list[str] = []

    def compose(self) -> ComposeResult:
        chat = Static("\n".join(f"line {number} of the chat" for number in range(50)))
        chat.styles.height = "1fr"
        yield chat
        yield from self.prompt.above
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus()

    def on_unmount(self) -> None:
        self.files.close()

    @property
    def suggestions(self) -> Suggestions:
        return self.prompt.suggestions

    @property
    def labels(self) -> list[str]:
        return [row.label for row in self.suggestions.rows]

    @property
    def chips(self) -> list[str]:
        return [one.name for one in self.prompt.attachments]

    def action_note(self, key: str) -> None:
        self.keys.append(key)

    @on(Prompt.Submitted)
    def _sent(self, event: Prompt.Submitted) -> None:
        self.sent.append(event)

    @on(Prompt.Notice)
    def _notice(self, event: Prompt.Notice) -> None:
        (self.refused if event.is_error else self.notices).append(event.line)

    @on(Prompt.EditLast)
    def _edit(self) -> None:
        self.edits += 1

    def paste(self, text: str) -> None:
        self.prompt.post_message(events.Paste(text))


async def type_in(pilot: Pilot[Any], text: str) -> None:
    """Type a text key by key."""
    await pilot.press(*("enter" if one == "\n" else "space" if one == " " else one for one in text))
    await pilot.pause()


async def wait_for_suggestions(pilot: Pilot[Any], desk: Desk, *labels: str) -> None:
    """Wait until the suggestions begin with these labels."""
    await wait_until(pilot, lambda: desk.labels[: len(labels)] == list(labels) and bool(desk.labels))
    await pilot.pause()
