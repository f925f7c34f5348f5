"""Key hints on the prompt's frame, and the three example questions that Tab cycles through."""

from collections.abc import Sequence

from textual import events, on
from textual.content import Content

from localdflash.tui.actions.answer_actions import AnswerActions
from localdflash.tui.prompt_field import Prompt
from localdflash.tui.welcome import ExampleQuestion, Welcome

SEPARATOR = " · "
ASK = "Ask something"
IN_MESSAGES = ("c copies", "1-9 copies a code block", "e edits", "r retries", "f forks", "Tab to the prompt")
EDITING = ("Enter asks again", "Esc leaves the chat as it was")
ANSWERING = ("Esc stops", "Enter sends afterwards")
SHELL_COMMAND = ("Enter runs it, if you agree",)
TYPING = ("Enter sends", "Ctrl+J new line", "F7 editor")
FIRST_HINT = "Tab something to try"
EMPTY = ("F1 help", "/ commands", "@ files", "! a command's output", "Ctrl+D leaves")


def fitting(keys: Sequence[str], width: int) -> Content:
    """Return as many hints as fit into `width` cells, with the keys in bold."""
    shown = Content("")
    for hint in keys:
        key, blank, does = hint.partition(" ")
        more = Content.assemble(SEPARATOR if shown else "", (key, "bold $foreground"), blank + does)
        if shown.cell_length + more.cell_length > width:
            break
        shown += more
    return shown


PLACEHOLDER = f"{ASK}; / for commands, @ for files"
MIN_FRAME_ROWS = 20  # rows under which the prompt has no frame
_FRAME_CELLS = 6  # cells of the prompt's frame beside what stands in it


class KeyActions(AnswerActions):
    """Mixin that shows the keys for the current state and inserts example questions."""

    welcome: Welcome

    @on(Prompt.Changed)
    @on(events.DescendantFocus)
    def refresh_keys(self) -> None:
        """Update the key hints for the current state."""
        keys = fitting(self._keys(), self.size.width - _FRAME_CELLS)
        if self.prompt.border_subtitle != keys.markup:
            self.prompt.border_subtitle = keys
        if self.size.height < MIN_FRAME_ROWS:  # without a frame they stand where nothing is typed
            self.prompt.placeholder = fitting((ASK, *self._keys()), self.size.width - 2).plain
        else:
            self.prompt.placeholder = PLACEHOLDER

    def _keys(self) -> Sequence[str]:
        if self.transcript.has_focus:
            return IN_MESSAGES
        if self.editing:
            return EDITING
        if self.talk.answering:
            return ANSWERING
        if self.prompt.text.startswith("!"):
            return SHELL_COMMAND
        if self.prompt.text:
            return TYPING
        return (FIRST_HINT, *EMPTY) if self.welcome.display else EMPTY

    @on(ExampleQuestion.Clicked)
    def _try_picked(self, event: ExampleQuestion.Clicked) -> None:
        self.prompt.put_all(event.text)
        self.prompt.focus()

    def can_insert_example(self) -> bool:
        """Return whether the prompt is empty or holds an unedited example question."""
        texts = ("", *(one.text for one in self.welcome.tries))
        return self.welcome.display and self.prompt.has_focus and self.prompt.text in texts

    def action_try(self) -> None:
        """Insert the next example question into the prompt."""
        texts = [one.text for one in self.welcome.tries]
        at = texts.index(self.prompt.text) + 1 if self.prompt.text in texts else 0
        self.prompt.put_all(texts[at % len(texts)])
