"""App of `localdflash chat` on a terminal; its screen appears before the daemon is ready."""

import asyncio
import gc
import math
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.command import CommandList, CommandPalette, DiscoveryHit, Hit, Provider
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.driver import Driver
from textual.filter import LineFilter
from textual.worker import WorkerFailed

from localdflash.base.errors import LocaldflashError
from localdflash.base.system.process import QUIT_SIGNALS
from localdflash.chat.attachable_files import find_code_file
from localdflash.chat.mentions import spell_mention
from localdflash.chat.sampling_settings import SETTINGS
from localdflash.chat.store import ChatStore
from localdflash.text.sanitize import printable
from localdflash.tui import saved_state
from localdflash.tui.actions.chat_actions import ChatActions
from localdflash.tui.actions.code_actions import CodeActions
from localdflash.tui.actions.model_actions import ModelActions
from localdflash.tui.actions.view_actions import MIN_FRAME_ROWS, PLACEHOLDER, ViewActions
from localdflash.tui.app_base import LATEST, ChatStart, in_background
from localdflash.tui.captions import read_number
from localdflash.tui.commands import COMMANDS, Command
from localdflash.tui.highlight import lexer_for
from localdflash.tui.prompt_field import Prompt
from localdflash.tui.speed_panel import SpeedPanel
from localdflash.tui.status_bar import Status, StatusBar
from localdflash.tui.themes import COLOURLESS, THEMES, VARIABLE_DEFAULTS, NoColours, register
from localdflash.tui.transcript import Transcript
from localdflash.tui.welcome import Welcome, example_questions

STATUS_REFRESH_SECONDS = 0.25
MAX_QUIT_SECONDS = 3.0  # from a signal until the process is ended by force
DOUBLE_PRESS_SECONDS = 2.0  # two presses of Ctrl+C within this time quit
MIN_WIDE_COLUMNS = 100  # on a narrower screen the speed panel is below the chat

_KEYS = [
    Binding(key, command.name, command.help, priority=key != "escape", show=False)
    for command in COMMANDS
    for key in command.keys
]


class ChatCommands(Provider):
    """Provider of the chat's commands for Textual's palette."""

    async def discover(self) -> AsyncGenerator[Hit | DiscoveryHit, None]:
        """Yield all commands."""
        for command in COMMANDS:
            shown = Content(command.usage)  # a string would be parsed as markup
            yield DiscoveryHit(shown, partial(self._run, command), command.usage, command.help)

    async def search(self, query: str) -> AsyncGenerator[Hit | DiscoveryHit, None]:
        """Yield the commands whose usage or help matches."""
        matcher = self.matcher(query)
        for command in COMMANDS:
            if (score := matcher.match(f"{command.usage} {command.help}")) > 0:
                shown = Content(command.usage)
                for at in matcher.fuzzy_search.match(query, command.usage)[1]:
                    shown = shown.stylize(matcher.match_style, at, at + 1)
                yield Hit(score, shown, partial(self._run, command), command.usage, command.help)

    def _run(self, command: Command) -> None:
        app = self.app
        assert isinstance(app, ChatApp)
        app.run_command(command, "")


class ChatPalette(CommandPalette):
    """Textual's palette, without the keys of its list before the list has a row on the screen: they raise KeyError."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the list's keys while it has no row."""
        if action == "command_list" and not any(one.scrollable_content_region for one in self.query(CommandList)):
            return False
        return super().check_action(action, parameters)


class ChatApp(ViewActions, ChatActions, CodeActions, ModelActions):
    """Textual app of the chat."""

    TITLE = "localdflash"
    COMMANDS: ClassVar[set[Any]] = {ChatCommands}
    BINDINGS: ClassVar[list[Any]] = [
        *_KEYS,
        Binding("ctrl+c", "interrupt", "Stop the answer", priority=True, show=False, system=True),
        Binding("tab", "try", "Something to try", priority=True, show=False),
        Binding("pageup", "scroll_chat(-1)", "Scroll up", show=False),
        Binding("pagedown", "scroll_chat(1)", "Scroll down", show=False),
    ]
    VERTICAL_BREAKPOINTS = [(0, "-low"), (MIN_FRAME_ROWS, "-high")]  # noqa: RUF012
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (MIN_WIDE_COLUMNS, "-wide")]  # noqa: RUF012
    CSS = """
    #middle { height: 1fr; }
    #chat { width: 1fr; }
    Transcript { height: 1fr; }
    .-high Prompt { border: round $border-blurred; border-subtitle-color: $text-muted; }
    .-high Prompt:focus { border: round $border; }
    SearchIcon { display: none; }
    ToastRack { dock: top; align: right top; margin: 0; }
    """

    def __init__(self, start: ChatStart) -> None:
        super().__init__(start)
        register(self)
        self.theme = COLOURLESS if self.no_color else saved_state.load().theme
        if os.environ.get("NO_MOTION"):
            self.animation_level = "none"  # TEXTUAL_ANIMATIONS=none does it too
        self._early_keys: list[events.Key | events.Paste] | None = []  # typed before the prompt exists
        self._last_interrupt = -math.inf  # monotonic time of the last Ctrl+C
        self.talk.answerer.on_stage = lambda _: self.refresh_status()
        self.talk.answerer.when_busy = self.ask_when_busy

    def get_driver_class(self) -> type[Driver]:
        """Return this project's driver on Linux terminals."""
        driver_class = super().get_driver_class()
        if driver_class.__name__ != "LinuxDriver":  # on Windows, or set by TEXTUAL_DRIVER
            return driver_class
        from localdflash.tui.driver import Driver as OurDriver

        return OurDriver

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return this project's filter under NO_COLOR, because Textual's filter writes greys."""
        return [NoColours()] if self.no_color else super().get_line_filters()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the drafters' colours for themes that define none."""
        return dict(VARIABLE_DEFAULTS)

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        self.transcript, self.status_bar = Transcript(), StatusBar()
        self.prompt = Prompt(
            self.files,
            self.history,
            placeholder=PLACEHOLDER,
            choices=self.argument_choices,
            editable=lambda: any(message.role == "user" for message in self.talk.messages),
        )
        panel = SpeedPanel()
        panel.display = False
        with Horizontal(id="middle"):
            with Vertical(id="chat"):
                self.welcome = Welcome(not saved_state.load().seen_welcome, self.start.pair, self.start.server)
                yield self.welcome
                yield self.transcript
            yield panel
        yield from self.prompt.above
        yield self.prompt
        yield self.status_bar

    def on_mount(self) -> None:
        """Focus the prompt, then start slow initialisation in the background."""
        self.prompt.focus()
        if not self.is_headless:
            for number in QUIT_SIGNALS:
                signal.signal(number, partial(self._quit_on_signal, asyncio.get_running_loop()))
        self.set_interval(STATUS_REFRESH_SECONDS, self._refresh_while_answering)
        self.chats_loading += 1  # until `_initialise` has opened the chat
        self.call_after_refresh(self._replay_early_keys)
        self.call_after_refresh(self._initialise)

    def _quit_on_signal(self, loop: asyncio.AbstractEventLoop, number: int, _: object) -> None:
        """Quit as with /quit, so that the answer is saved; a second signal ends the process at once."""
        signal.signal(number, signal.SIG_DFL)
        force_exit = threading.Timer(MAX_QUIT_SECONDS, os._exit, [128 + number])  # a closed terminal may block the loop
        force_exit.daemon = True
        force_exit.start()
        loop.call_soon_threadsafe(lambda: self.run_worker(self.action_quit()))

    async def on_event(self, event: events.Event) -> None:
        """Keep keys typed before the prompt exists, and divert keys typed before the user could read a dialog."""
        if isinstance(event, events.Key | events.Paste) and not event.is_forwarded:
            if self._early_keys is not None:
                self._early_keys.append(event)
                return
            if self._divert_typed_ahead(event):
                return
        await super().on_event(event)

    def _divert_typed_ahead(self, event: events.Key | events.Paste) -> bool:
        """Send text typed before the user could read a dialog to the prompt; return whether it was consumed."""
        if not self.is_covered:
            return False
        from localdflash.tui.screens.dialog import Dialog

        dialog = self.screen
        if not isinstance(dialog, Dialog) or dialog.accept_key():
            return False
        if isinstance(event, events.Paste) or event.is_printable or event.key == "backspace":
            self.prompt.post_message(event)
            return True
        return not event.key.startswith("ctrl+")  # quitting is always possible

    async def _replay_early_keys(self) -> None:
        early, self._early_keys = self._early_keys or [], None
        for event in early:
            await super().on_event(event)

    @in_background
    async def _initialise(self) -> None:
        import_module("msgspec")  # its import fails in two threads at once
        self._open_answerer()
        await asyncio.to_thread(import_module, "localdflash.tui.markdown")
        self.load_project()
        if file := await asyncio.to_thread(find_code_file, self.files):
            self.welcome.show_examples(example_questions(spell_mention(file)))
        try:
            await self._resume_chat(self.start.resume)
        finally:
            self.chats_loading -= 1
            self.send_queued(stopped=False)
        if self.start.chats and not saved_state.load().seen_welcome:
            with suppress(LocaldflashError):
                saved_state.save(replace(saved_state.load(), seen_welcome=True))

    async def _resume_chat(self, chat_id: int | str | None) -> None:
        if chat_id == LATEST:
            latest = await self.talk.run_in_store(ChatStore.latest, self.talk.folder)
            if latest is None:
                self.say("no earlier chat in this folder: starting a new one")
            chat_id = latest.id if latest else None
        if isinstance(chat_id, int):
            await self.open_chat(chat_id)
            if self.start.system:
                await self.talk.set_instructions(self.start.system)

    @work
    async def _open_answerer(self) -> None:
        try:
            info = await self.talk.answerer.ready()
        except LocaldflashError as error:
            if not self.talk.is_answering:  # the answer waits for the same start and reports its error
                self.show_error(f"{error}; sending a message tries again")
        else:
            if info.notice:
                self.say(info.notice)
        self.refresh_status()
        await asyncio.to_thread(lexer_for, "python")  # takes 40 ms
        if not self.is_headless:  # tests start many apps in one process
            gc.freeze()  # each full collection of all modules takes 50 to 100 ms

    def _fatal_error(self) -> None:
        """Exit with a one-line error; only --debug shows Textual's traceback, which contains variables."""
        if self.start.debug:
            super()._fatal_error()
            return
        failed = self._exception
        error = failed.error if isinstance(failed, WorkerFailed) else failed
        line = f"internal error: {type(error).__name__}: {error}; the chat is saved; --debug shows the traceback"
        self.panic(Text(f"localdflash: {printable(line)}", overflow="fold"))

    def _refresh_while_answering(self) -> None:
        if self.talk.is_answering:
            self.refresh_status()

    def refresh_status(self) -> None:
        """See `ChatAppBase`."""
        if not self.is_running:
            return
        self.refresh_keys()
        answerer, answer, acceptance = self.talk.answerer, self.talk.last_answer(), self.talk.acceptance
        numbers = answer.numbers if answer else {}
        info, is_answering = answerer.info, self.talk.is_answering
        self.status_bar.update(
            Status(
                model=info.pair if info else "",
                stage="" if answerer.stage == "ready" else answerer.stage,
                context_tokens=self.talk.context_tokens,
                context_limit=info.context if info else 0,
                rate=acceptance.rate if is_answering else read_number(numbers, "tokens_per_second"),
                is_average=not is_answering,
                tau=acceptance.tau if is_answering else read_number(numbers, "tau"),
                accepted=acceptance.acceptance_rate if is_answering else _acceptance_rate(numbers),
                ttft_ms=acceptance.ttft_ms if is_answering else read_number(numbers, "ttft_ms"),
                drafting_on=self.talk.settings.draft,
                has_drafter=info.has_drafter if info and answerer.is_localdflash else True,
                busy=is_answering,
            )
        )
        self.transcript.set_view(model=info.pair if info else self.start.pair)
        panel = self.query_one(SpeedPanel)
        if panel.display:
            panel.update_view(acceptance)

    @on(Prompt.Notice)
    def _show_notice(self, event: Prompt.Notice) -> None:
        (self.show_error if event.is_error else self.say)(event.line)

    def argument_choices(self, command: str) -> Sequence[str]:
        """Return the possible arguments of a command, for suggestions."""
        match command:
            case "set":
                return SETTINGS
            case "theme":
                return tuple(THEMES)
            case "draft" | "think" | "project":
                return ("on", "off")
            case "role":
                from localdflash.chat.roles import list_roles

                return ("none", *list_roles())
        return ()

    def action_command_palette(self) -> None:
        """Show the palette of commands."""
        self.push_screen(ChatPalette())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the chat's keys, except quit, while a dialog is open."""
        if self.is_covered and action in _CHAT_ACTIONS:
            return False
        if action == "try" and (self.is_covered or not self.can_insert_example()):
            return False
        return super().check_action(action, parameters)

    @work
    async def action_interrupt(self) -> None:
        """Handle Ctrl+C: copy the selection, else stop the answer, clear the prompt, or quit on the second press."""
        prompt = self.prompt
        if selected := self.screen.get_selected_text() or prompt.selected_text:
            await self.copy_text(selected, "the selection")
        elif self.talk.is_answering:
            self.action_stop()
        elif not self.is_covered and (prompt.text or prompt.attachments):
            prompt.put_all("")
            prompt.detach()
            self.cancel_edit()
        elif time.monotonic() - self._last_interrupt < DOUBLE_PRESS_SECONDS:
            await self.action_quit()
        else:
            self._last_interrupt = time.monotonic()
            self.notify("Ctrl+C again quits", markup=False, timeout=DOUBLE_PRESS_SECONDS)

    def action_scroll_chat(self, pages: int) -> None:
        """Scroll the chat while the prompt has the focus."""
        if pages < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)


_CHAT_ACTIONS = {one.name for one in COMMANDS if one.name != "quit"} | {"scroll_chat", "command_palette"}


def _acceptance_rate(numbers: Mapping[str, Any]) -> float | None:
    drafted, accepted = read_number(numbers, "drafted"), read_number(numbers, "accepted")
    return accepted / drafted if drafted and accepted is not None else None
