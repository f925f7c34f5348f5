"""`localdflash chat` on a terminal: a client of the engine, whose screen is there before the engine is.

Everything a user can do is in `localdflash.tui.commands`; everything that is done for it in `localdflash.tui.actions`.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.command import DiscoveryHit, Hit, Provider
from textual.containers import Horizontal, Vertical
from textual.worker import WorkerFailed

from localdflash.chat.settings import SETTINGS
from localdflash.cli.output import printable
from localdflash.chat.store import Store
from localdflash.errors import LocaldflashError
from localdflash.tui import state
from localdflash.tui.actions.answers import Answers
from localdflash.tui.actions.chats import Chats
from localdflash.tui.actions.code import Code
from localdflash.tui.actions.model import Model
from localdflash.tui.actions.speed import Speed
from localdflash.tui.actions.view import View
from localdflash.tui.base import LATEST, Start, told
from localdflash.tui.commands import COMMANDS, Command
from localdflash.tui.prompt import Prompt
from localdflash.tui.speed_panel import SpeedPanel
from localdflash.tui.status_bar import Status, StatusBar
from localdflash.tui.themes import THEMES, VARIABLE_DEFAULTS, register
from localdflash.tui.transcript import Transcript
from localdflash.tui.welcome import Welcome

REFRESH = 0.25  # seconds between two looks at the numbers while an answer grows
NARROW = 100  # columns under which the panel of speed goes below the chat

PLACEHOLDER = "Ask something; / for commands, @ for files"

Hits = AsyncGenerator[Hit | DiscoveryHit, None]


_KEYS = [
    Binding(key, command.action, command.help, priority=key != "escape", show=False)
    for command in COMMANDS
    for key in command.keys
]


class ChatCommands(Provider):
    """The commands in the palette; one that needs an argument is put into the prompt."""

    async def discover(self) -> Hits:
        """See textual."""
        for command in COMMANDS:
            yield DiscoveryHit(command.usage, partial(self._run, command), help=command.help)

    async def search(self, query: str) -> Hits:
        """See textual."""
        matcher = self.matcher(query)
        for command in COMMANDS:
            if (score := matcher.match(f"{command.usage} {command.help}")) > 0:
                yield Hit(score, matcher.highlight(command.usage), partial(self._run, command), help=command.help)

    def _run(self, command: Command) -> None:
        app = self.app
        assert isinstance(app, ChatApp)
        app.choose(command)


class ChatApp(Answers, Chats, Code, Speed, Model, View):
    """The app."""

    TITLE = "localdflash"
    COMMANDS: ClassVar[set[Any]] = {ChatCommands}
    BINDINGS: ClassVar[list[Any]] = [
        *_KEYS,
        Binding("ctrl+c", "interrupt", "Stop the answer", priority=True, show=False, system=True),
        Binding("pageup", "scroll_chat(-1)", "Scroll up", show=False),
        Binding("pagedown", "scroll_chat(1)", "Scroll down", show=False),
    ]
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (as textual declares it)
        (0, "-narrow"),
        (NARROW, "-wide"),
    ]
    CSS = """
    #middle { height: 1fr; }
    #chat { width: 1fr; }
    Transcript { height: 1fr; }
    """

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        register(self)
        self.theme = state.load().theme
        self.talk.engine.on_stage = lambda _: self.refresh_status()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Colours of the drafters, for themes that have none."""
        return dict(VARIABLE_DEFAULTS)

    def compose(self) -> ComposeResult:
        """See textual."""
        self.transcript, self.status_bar = Transcript(), StatusBar()
        self.prompt = Prompt(
            self.files,
            self.history,
            placeholder=PLACEHOLDER,
            choices=self.choices_of,
            editable=lambda: any(message.role == "user" for message in self.talk.messages),
        )
        panel = SpeedPanel()
        panel.display = False
        with Horizontal(id="middle"):
            with Vertical(id="chat"):
                yield Welcome(first_run=not state.load().seen_welcome, model=self.start.pair, server=self.start.server)
                yield self.transcript
            yield panel
        yield from self.prompt.above
        yield self.prompt
        yield self.status_bar

    def on_mount(self) -> None:
        """Show the screen first; what takes time begins behind it."""
        self.prompt.focus()
        self.set_interval(REFRESH, self._look)
        self.call_after_refresh(self._begin)

    @work
    @told
    async def _begin(self) -> None:
        self._start_engine()
        await self._go_on_with(self.start.session)
        if not state.load().seen_welcome:
            with suppress(LocaldflashError):  # it is explained once more at the next start
                state.save(replace(state.load(), seen_welcome=True))

    async def _go_on_with(self, session: int | str | None) -> None:
        if session == LATEST:
            latest = await self.talk.kept(Store.latest, self.talk.folder)
            if latest is None:
                self.say("there is no earlier chat in this folder: this is a new one")
            session = latest.id if latest else None
        if isinstance(session, int):
            await self.open_chat(session)
            if self.start.system:
                await self.talk.instruct(self.start.system)
            self.count_used()

    @work
    async def _start_engine(self) -> None:
        try:
            about = await self.talk.engine.ready()
        except LocaldflashError as error:
            self.complain(f"{error}; a message you send tries again")
        else:
            if about.notice:
                self.say(about.notice)
        self.refresh_status()

    def _fatal_error(self) -> None:
        """Textual's own shows a traceback with the values of all variables."""
        if self.start.debug:
            super()._fatal_error()
            return
        failed = self._exception
        error = failed.error if isinstance(failed, WorkerFailed) else failed
        told = f"internal error: {type(error).__name__}: {error}; the chat is kept; --debug shows more"
        self.panic(Text(f"localdflash: {printable(told)}", no_wrap=True, overflow="ignore"))

    # The numbers

    def _look(self) -> None:
        if self.talk.answering:
            self.refresh_status()

    def refresh_status(self) -> None:
        """See `Base`."""
        if not self.is_running:
            return
        engine, answer, speed = self.talk.engine, self.talk.last_answer(), self.talk.speed
        numbers = answer.numbers if answer else {}
        about, growing = engine.about, self.talk.answering
        self.status_bar.update(
            Status(
                model=about.pair if about else "",
                stage="" if engine.stage == "ready" else engine.stage,
                used=self.talk.used,
                context=about.context if about else 0,
                rate=speed.rate if growing else numbers.get("tokens_per_second"),
                average=not growing,
                tau=speed.tau if growing else numbers.get("tau"),
                accepted=speed.share if growing else _share(numbers),
                ttft_ms=speed.ttft_ms if growing else numbers.get("ttft_ms"),
                draft=self.talk.settings.draft,
                busy=growing,
            )
        )
        self.transcript.model = about.pair if about else self.start.pair
        panel = self.query_one(SpeedPanel)
        if panel.display:
            panel.update_view(speed)

    # Commands

    @on(Prompt.Refused)
    def _refused(self, event: Prompt.Refused) -> None:
        self.complain(event.reason)

    @on(Prompt.Told)
    def _told(self, event: Prompt.Told) -> None:
        self.say(event.line)

    @on(StatusBar.Picked)
    def _picked_part(self, event: StatusBar.Picked) -> None:
        """A click on the model or on a number of speed."""
        if event.part == "model":
            self.action_model()
        elif event.part in ("rate", "tau", "accepted", "first", "draft"):
            self.action_speed()

    def choices_of(self, command: str) -> Sequence[str]:
        """What may stand after a command, for the suggestions."""
        match command:
            case "set":
                return SETTINGS
            case "theme":
                return tuple(THEMES)
            case "draft" | "think":
                return ("on", "off")
            case "role":
                from localdflash.chat.roles import roles

                return ("none", *roles())
        return ()

    def choose(self, command: Command) -> None:
        """A command of the palette: one that cannot do without an argument goes into the prompt."""
        if command.argument and not command.argument.startswith("["):
            self.prompt.put_back(f"/{command.name} ", ())
            self.prompt.focus()
            return
        self.run_command(command, "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys of the chat do nothing while another screen lies over it, but for leaving."""
        if self.covered and action in _OF_THE_CHAT:
            return False
        return super().check_action(action, parameters)

    @work
    async def action_interrupt(self) -> None:
        """Ctrl-C: copy what is selected, else stop the answer, else say how to leave."""
        if selected := self.screen.get_selected_text():
            await self.copy_text(selected, "the selection")
        elif self.talk.answering:
            self.action_stop()
        else:
            self.notify("Ctrl+Q leaves", markup=False)

    def action_scroll_chat(self, pages: int) -> None:
        """Scroll the chat from the prompt."""
        if pages < 0:
            self.transcript.scroll_page_up(animate=False)
        else:
            self.transcript.scroll_page_down(animate=False)


_OF_THE_CHAT = {command.action for command in COMMANDS if command.action != "quit"} | {"scroll_chat"}


def _share(numbers: Mapping[str, Any]) -> float | None:
    drafted, accepted = numbers.get("drafted"), numbers.get("accepted")
    return accepted / drafted if drafted and accepted is not None else None
