"""The keys of the moment on the prompt's frame, and the three things to try, which Tab goes through."""

from collections.abc import Sequence

from textual import events, on

from localdflash.tui import hints
from localdflash.tui.actions.answer_actions import AnswerActions
from localdflash.tui.prompt_field import Prompt
from localdflash.tui.welcome import Try, Welcome

PLACEHOLDER = f"{hints.ASK}; / for commands, @ for files"
LOW = 20  # rows under which the prompt has no frame
_FRAME = 6  # cells of the prompt's frame beside what stands in it


class KeyActions(AnswerActions):
    """See the module."""

    welcome: Welcome

    @on(Prompt.Changed)
    @on(events.DescendantFocus)
    def refresh_keys(self) -> None:
        """Name the keys of the moment."""
        keys = hints.fitting(self._keys(), self.size.width - _FRAME)
        if self.prompt.border_subtitle != keys.markup:
            self.prompt.border_subtitle = keys
        if self.size.height < LOW:  # without a frame they stand where nothing is typed
            self.prompt.placeholder = hints.fitting((hints.ASK, *self._keys()), self.size.width - 2).plain
        else:
            self.prompt.placeholder = PLACEHOLDER

    def _keys(self) -> Sequence[str]:
        if self.transcript.has_focus:
            return hints.IN_MESSAGES
        if self.editing:
            return hints.EDITING
        if self.talk.answering:
            return hints.ANSWERING
        if self.prompt.text.startswith("!"):
            return hints.OUTSIDE
        if self.prompt.text:
            return hints.TYPING
        return (hints.FIRST, *hints.EMPTY) if self.welcome.display else hints.EMPTY

    @on(Try.Picked)
    def _try_picked(self, event: Try.Picked) -> None:
        self.prompt.put_all(event.text)
        self.prompt.focus()

    def may_try(self) -> bool:
        """Whether the prompt holds nothing but what was offered to try."""
        texts = ("", *(one.text for one in self.welcome.tries))
        return self.welcome.display and self.prompt.has_focus and self.prompt.text in texts

    def action_try(self) -> None:
        """Put the next of the three things to try into the prompt."""
        texts = [one.text for one in self.welcome.tries]
        at = texts.index(self.prompt.text) + 1 if self.prompt.text in texts else 0
        self.prompt.put_all(texts[at % len(texts)])
