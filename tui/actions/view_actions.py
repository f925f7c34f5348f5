"""Commands for appearance, speed, help and quitting; the key hints on the prompt's frame, and example questions."""

import asyncio
import webbrowser
from collections.abc import Sequence
from dataclasses import replace

from textual import events, on, work
from textual.content import Content

from localdflash.base.errors import LocaldflashError, did_you_mean
from localdflash.tui import saved_state
from localdflash.tui.actions.answer_actions import AnswerActions
from localdflash.tui.app_base import in_background
from localdflash.tui.prompt_field import Prompt
from localdflash.tui.speed_panel import SpeedPanel
from localdflash.tui.themes import THEMES
from localdflash.tui.transcript import Transcript
from localdflash.tui.welcome import ExampleQuestion, Welcome

_TERMINAL_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")  # they would draw over the chat

HINT_SEPARATOR = " · "
ASK_HINT = "Ask something"
MESSAGE_HINTS = ("c copies", "1-9 copies a code block", "e edits", "r retries", "f forks", "Tab to the prompt")
EDITING_HINTS = ("Enter asks again", "Esc leaves the chat as it was")
ANSWERING_HINTS = ("Esc stops", "Enter sends afterwards")
SHELL_HINTS = ("Enter runs it, if you agree",)
TYPING_HINTS = ("Enter sends", "Ctrl+J new line", "F7 editor")
FIRST_HINT = "Tab something to try"
EMPTY_HINTS = ("F1 help", "/ commands", "@ files", "! a command's output", "Ctrl+D leaves")
PLACEHOLDER = f"{ASK_HINT}; / for commands, @ for files"
MIN_FRAME_ROWS = 20  # lower screens show the prompt without a frame
_FRAME_CELLS = 6  # cells of the hint row that the prompt's frame takes


class ViewActions(AnswerActions):
    """Mixin with the commands for appearance, speed, help and quitting, and with the key hints."""

    welcome: Welcome

    _is_quitting = False
    _find_query = ""  # words of the last /find

    def action_thoughts(self) -> None:
        """Show or hide the model's thinking."""
        self.transcript.set_view(unfolds_thoughts=not self.transcript.view.unfolds_thoughts)

    @in_background
    async def action_find(self, words: str = "") -> None:
        """Find words in this chat, the last match first; without words, find the match above the selected one."""
        from localdflash.tui.screens.questions import TextDialog

        words = words or self._find_query or await self.show_dialog(TextDialog("Words to find in this chat")) or ""
        self._find_query = words.strip()
        if not self._find_query:
            return
        if hit := self.transcript.find(self._find_query):
            self.notify(f"{self._find_query}: {hit[0]} of {hit[1]}; Ctrl+F finds the previous one", markup=False)
        else:
            self.notify(f"{self._find_query}: not found in this chat", markup=False)

    def action_theme(self, name: str = "") -> None:
        """Switch to a theme; without a name, to the next one."""
        names = list(THEMES)
        if self.no_color:
            self.show_error("NO_COLOR is set: no theme has colours")
            return
        if not name:
            at = names.index(self.theme) if self.theme in names else -1
            name = names[(at + 1) % len(names)]
        if name not in THEMES:
            self.show_error(f"no theme {name!r}{did_you_mean(name, names) or ': one of ' + ', '.join(names)}")
            return
        self.theme = name
        if not self.start.chats:
            return
        try:
            saved_state.save(replace(saved_state.load(), theme=name))
        except LocaldflashError as error:
            self.show_error(str(error))

    @on(Transcript.LinkClick)
    @work
    async def _open_link(self, event: Transcript.LinkClick) -> None:
        """Open a clicked link in the user's browser, if one runs outside this terminal."""
        try:
            browser = await asyncio.to_thread(webbrowser.get)
            if browser.name in _TERMINAL_BROWSERS or not await asyncio.to_thread(browser.open, event.url):
                raise webbrowser.Error
        except (webbrowser.Error, OSError):
            self.show_error(f"no browser found to open {event.url}")

    def action_help(self) -> None:
        """Show commands and keys."""
        from localdflash.tui.screens.help_screen import HelpScreen

        self.push_screen(HelpScreen())

    async def action_quit(self) -> None:
        """Quit; a partial answer is stopped and saved."""
        if self._is_quitting:
            return
        self._is_quitting = True
        await self.talk.close()
        await self.talk.answerer.close()
        self.files.close()
        await asyncio.to_thread(self.history.close)
        self.exit(0)

    def action_accepted(self) -> None:
        """Turn the tinting of tokens by their source on or off."""
        self.transcript.set_view(tinted=not self.transcript.view.tinted)

    def action_speed(self) -> None:
        """Show or hide the speed panel."""
        panel = self.query_one(SpeedPanel)
        panel.display = not panel.display
        self.refresh_status()

    @in_background
    async def action_bench(self) -> None:
        """Answer the last turn without and with drafting, and show the comparison."""
        from localdflash.chat.drafting_comparison import Comparison, compare_drafting
        from localdflash.tui.screens.compare_screen import CompareScreen

        talk = self.talk
        if talk.is_answering:
            self.show_error("an answer is in progress; Esc stops it")
            return
        last = max((i for i, message in enumerate(talk.messages) if message.role == "user"), default=-1)
        if last < talk.dropped:
            self.show_error("there is no message yet; send one, then compare")
            return
        screen = CompareScreen()
        messages = talk.messages[talk.dropped : last + 1]

        async def run() -> None:
            try:
                await compare_drafting(
                    talk.answerer, messages, system=talk.system_prompt, settings=talk.settings, say=screen.show
                )
            except LocaldflashError as error:
                screen.show(Comparison(problem=str(error)))

        worker = self.run_worker(run())
        await self.push_screen_wait(screen)
        worker.cancel()

    @on(Prompt.Changed)
    @on(events.DescendantFocus)
    def refresh_keys(self) -> None:
        """Update the key hints for the current state."""
        keys = fit_hints(self._key_hints(), self.size.width - _FRAME_CELLS)
        if self.prompt.border_subtitle != keys.markup:
            self.prompt.border_subtitle = keys
        if self.size.height < MIN_FRAME_ROWS:
            self.prompt.placeholder = fit_hints((ASK_HINT, *self._key_hints()), self.size.width - 2).plain
        else:
            self.prompt.placeholder = PLACEHOLDER

    def _key_hints(self) -> Sequence[str]:
        if self.transcript.has_focus:
            return MESSAGE_HINTS
        if self.is_editing:
            return EDITING_HINTS
        if self.talk.is_answering:
            return ANSWERING_HINTS
        if self.prompt.text.startswith("!"):
            return SHELL_HINTS
        if self.prompt.text:
            return TYPING_HINTS
        return (FIRST_HINT, *EMPTY_HINTS) if self.welcome.display else EMPTY_HINTS

    @on(ExampleQuestion.Clicked)
    def _example_clicked(self, event: ExampleQuestion.Clicked) -> None:
        self.prompt.put_all(event.text)
        self.prompt.focus()

    def can_insert_example(self) -> bool:
        """Return whether the focused prompt of an empty chat is empty or holds an unedited example question."""
        texts = ("", *(one.text for one in self.welcome.examples))
        return self.welcome.display and self.prompt.has_focus and self.prompt.text in texts

    def action_try(self) -> None:
        """Insert the next example question into the prompt."""
        texts = [one.text for one in self.welcome.examples]
        at = texts.index(self.prompt.text) + 1 if self.prompt.text in texts else 0
        self.prompt.put_all(texts[at % len(texts)])


def fit_hints(keys: Sequence[str], width: int) -> Content:
    """Return as many hints as fit into `width` cells, with the keys in bold."""
    shown = Content("")
    for hint in keys:
        key, blank, effect = hint.partition(" ")
        more = Content.assemble(HINT_SEPARATOR if shown else "", (key, "bold $foreground"), blank + effect)
        if shown.cell_length + more.cell_length > width:
            break
        shown += more
    return shown
