"""Text area with suggestions for `@` and `/`: Tab or Enter inserts one, arrows move, Esc closes."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual import events, on
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from localdflash.chat.attachable_files import AttachableFiles
from localdflash.text.sanitize import sanitize
from localdflash.tui import commands
from localdflash.tui.suggestions import (
    ArgumentChoices,
    CompletionContext,
    PromptSuggestion,
    Suggestions,
    argument_suggestions,
    command_suggestions,
    completion_context,
    file_suggestion,
)
from localdflash.tui.undoable_area import UndoableArea

_APP_KEYS = {key for command in commands.COMMANDS for key in command.keys} | {"pageup", "pagedown"}


def _bindings() -> Iterable[Binding]:
    """Yield the bindings of a text area, without keys that belong to the app."""
    for binding in Binding.make_bindings(TextArea.BINDINGS):
        if binding.key not in _APP_KEYS:
            yield binding
    yield Binding("ctrl+shift+z,super+shift+z", "redo", "Redo", show=False)


# Actions that edit the text or move the cursor.
ACTION_BY_KEY = {key: binding.action for binding in _bindings() for key in binding.key.split(",")}


class SuggestingArea(UndoableArea, inherit_bindings=False):
    """Text area with suggestions for commands, arguments and files."""

    BINDINGS: ClassVar[list[BindingType]] = list(_bindings())

    def __init__(self, files: AttachableFiles, choices: ArgumentChoices, placeholder: str) -> None:
        super().__init__(placeholder=placeholder, highlight_cursor_line=False)
        self.files, self.suggestions, self._choices = files, Suggestions(self.accept), choices
        self.chosen_mentions: set[str] = set()  # mentions that the user chose, as spelled in the text
        self._pending_search: CompletionContext | None = None
        self._rows_context: CompletionContext | None = None  # context of the suggestions shown
        self._is_searching = False
        self._dismissed_at: tuple[int, int] | None = None  # word start at which Esc closed the suggestions
        self._inserted_text: str | None = None  # inserted text opens no suggestions

    def handle_suggestion_key(self, key: str) -> bool:
        """Handle a key while suggestions are open; return False if the prompt must handle it too.

        That is how Enter both accepts and sends a command. For an outdated list, Enter and Tab use a new one; a file
        search has no rows yet, so the prompt handles the key alone.
        """
        is_outdated = self._rows_context != self._completion_context()
        if key in ("enter", "tab") and is_outdated:
            self.close_suggestions()
            self._suggest()
        match key, self.suggestions.chosen:
            case (("up" | "down"), PromptSuggestion()):
                self.suggestions.move(-1 if key == "up" else 1)
            case "tab", PromptSuggestion() as chosen:
                self.accept(chosen)
            case "enter", PromptSuggestion() as chosen if not self._is_typed(chosen):
                self.accept(chosen)
                return not chosen.sends
            case "escape", _:
                self._dismissed_at = self._word_start()
                self.close_suggestions()
            case _:
                return False
        return True

    def accept(self, suggestion: PromptSuggestion) -> None:
        """Replace the typed word by a suggestion, unless the word has changed since."""
        context = self._completion_context()
        if context is None or context != self._rows_context:
            return
        if suggestion.is_mention:
            self.chosen_mentions.add(suggestion.text.rstrip())
        row, column = self.cursor_location
        next_character = self.document.get_line(row)[column : column + 1]
        text = suggestion.text.rstrip() if next_character == " " else suggestion.text
        self.close_suggestions()
        self.replace(sanitize(text), (row, context.start), (row, column), maintain_selection_offset=False)

    def close_suggestions(self) -> None:
        """Hide the suggestions and stop looking for more."""
        self._pending_search = None
        self.suggestions.close()

    def put(self, text: str, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Insert text without opening suggestions; the cursor moves behind it."""
        self.replace(sanitize(text), start, end, maintain_selection_offset=False)
        self._inserted_text = self.text

    def put_all(self, text: str) -> None:
        """Replace the whole text without opening suggestions. The change can be undone."""
        self.put(text, (0, 0), self.document.end)

    @on(TextArea.Changed)
    def _text_changed(self) -> None:
        if self.text == self._inserted_text:
            self.close_suggestions()
            return
        self._inserted_text = None
        self._suggest()

    @on(TextArea.SelectionChanged)
    def _cursor_moved(self) -> None:
        if self.suggestions.display or self._pending_search:
            self._suggest()

    @on(events.Blur)
    def _focus_lost(self) -> None:
        self.close_suggestions()

    def _completion_context(self) -> CompletionContext | None:
        row, column = self.cursor_location
        if not self.selection.is_empty:
            return None
        return completion_context(self.document.get_line(row)[:column], first=row == 0)

    def _word_start(self) -> tuple[int, int] | None:
        """Return the position at which the word being completed begins."""
        context = self._completion_context()
        return (self.cursor_location[0], context.start) if context else None

    def _suggest(self) -> None:
        context, start = self._completion_context(), self._word_start()
        if context is None or start == self._dismissed_at:
            self.close_suggestions()
            self._dismissed_at = start  # None if the cursor is in no word
            return
        self._dismissed_at = None
        match context.kind:
            case "command":
                self._show(context, command_suggestions(context.query))
            case "argument":
                self._show(context, argument_suggestions(context, self._choices))
            case "file":
                self._pending_search = context
                if not self._is_searching:
                    self._is_searching = True
                    self.run_worker(self._search_files(), group="suggestions")

    async def _search_files(self) -> None:
        """Search files, one search at a time; outdated results are dropped."""
        try:
            while (search := self._pending_search) is not None:
                if not self.files.is_listed:
                    self._show(search, [], "looking for files …")
                hits = await asyncio.to_thread(self.files.find, search.query)
                if self._pending_search == search:
                    self._pending_search = None
                    is_mention = not search.command  # the path of /attach has no `@`
                    self._show(search, [file_suggestion(hit, mentioned=is_mention) for hit in hits])
        finally:
            self._is_searching = False

    def _show(self, context: CompletionContext, rows: Sequence[PromptSuggestion], note: str = "") -> None:
        if self.has_focus:
            self._rows_context = context
            self.suggestions.show(rows, above=self.region.y, note=note)

    def _is_typed(self, chosen: PromptSuggestion) -> bool:
        """Return whether the mention is already typed in full, so that Enter sends the message."""
        context, (row, column) = self._completion_context(), self.cursor_location
        typed = self.document.get_line(row)[context.start : column] if context else ""
        return chosen.is_mention and typed == chosen.text.rstrip()
