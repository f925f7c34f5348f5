"""Commands that make speed visible: the acceptance view, the panel, drafting on and off, plain beside drafted."""

from textual import work

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.tui.base import Base, told
from localdflash.tui.speed_panel import SpeedPanel


class SpeedActions(Base):
    """See the module."""

    def action_accepted(self) -> None:
        """Tint each token by who proposed it, or stop tinting."""
        self.transcript.tinted = not self.transcript.tinted

    def action_speed(self) -> None:
        """Show or hide the speed panel."""
        panel = self.query_one(SpeedPanel)
        panel.display = not panel.display
        self.refresh_status()

    def action_draft(self, value: str = "") -> None:
        """Turn drafting on or off."""
        settings = self.talk.settings
        try:
            self.talk.settings = settings.changed("draft", value or ("off" if settings.draft else "on"))
        except UsageError as error:
            self.complain(str(error))
            return
        self.say("drafting is on" if self.talk.settings.draft else "drafting is off: plain decoding, one token a step")
        self.refresh_status()

    @work
    @told
    async def action_bench(self) -> None:
        """Answer the last turn plainly and with drafting, and compare."""
        from localdflash.chat.drafting_comparison import Comparison, compare
        from localdflash.tui.screens.compare_screen import CompareScreen

        talk = self.talk
        if talk.answering:
            self.complain("an answer is under way: Esc stops it")
            return
        last = max((i for i, message in enumerate(talk.messages) if message.role == "user"), default=-1)
        if last < 0:
            self.complain("nothing was asked yet: ask something, then compare")
            return
        screen = CompareScreen()
        asked = talk.messages[talk.left_out : last + 1]

        async def comparing() -> None:
            try:
                await compare(talk.answerer, asked, system=talk.before, settings=talk.settings, say=screen.show)
            except LocaldflashError as error:
                screen.show(Comparison(problem=str(error)))

        running = self.run_worker(comparing())
        await self.push_screen_wait(screen)
        running.cancel()
