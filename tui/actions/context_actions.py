"""Question to the user when the context is full: leave the oldest messages out, or send a summary instead of them."""

from collections.abc import Sequence

from localdflash.base.errors import ContextOverflow, LocaldflashError
from localdflash.chat.messages import Message
from localdflash.tui.app_base import ChatAppBase

RESERVE_DIVISOR = 4  # 1/4 of the context is reserved for the answer when messages are dropped


class ContextActions(ChatAppBase):
    """Mixin that leaves out or summarises the oldest messages of a chat."""

    async def make_room(self, error: ContextOverflow, *, continue_last: bool) -> str:
        """Ask the user whether to drop or summarise the oldest messages; return why nothing was dropped, else ""."""
        from localdflash.chat.context_fitting import plan_fit
        from localdflash.tui.screens.questions import Option, QuestionDialog

        talk, info = self.talk, self.talk.answerer.info
        sent = talk.messages[talk.dropped :]
        try:
            plan = plan_fit(
                talk.answerer,
                sent,
                system=talk.system_prompt,
                settings=talk.settings,
                reserve=info.context // RESERVE_DIVISOR if info else 0,
            )
            fit = await talk.run_until_stopped(plan)
        except LocaldflashError as reason:
            is_filled = continue_last and isinstance(reason, ContextOverflow)
            return "question and answer fill the context" if is_filled else str(reason)
        if not fit:
            return "not sent"
        if not fit.dropped:
            return str(error)
        lines = [
            f"{error}.",
            f"The oldest {fit.dropped} of {len(sent)} messages would no longer be sent to the model: "
            f"{fit.tokens} of {fit.context} tokens would be used.",
            "They stay in this chat and on the screen. A summary by the model can be sent instead of them.",
        ]
        options = Option("y", "Leave them out"), Option("s", "Summarise them"), Option("n", "Cancel")
        self.refresh_status()
        match await self.push_screen_wait(QuestionDialog("The context is full", lines, *options)):
            case "y":
                talk.dropped += fit.dropped
                talk.context_tokens = fit.tokens
                self.say(f"{talk.dropped} messages at the top are no longer sent: the context is full")
                return ""
            case "s":
                return await self._summarise_oldest(sent)
        return "not sent"

    async def _summarise_oldest(self, sent: Sequence[Message]) -> str:
        """Replace the oldest of the sent messages by a summary; return the reason if that fails, else ""."""
        from localdflash.chat.context_fitting import SUMMARY_SHARE, plan_fit, summarise
        from localdflash.tui.screens.questions import TextDialog

        talk, system, settings = self.talk, self.talk.system_prompt, self.talk.settings
        self.say("the model writes a summary; Esc cancels it")
        try:
            info = await talk.answerer.ready()
            reserve = info.context // RESERVE_DIVISOR + info.context // SUMMARY_SHARE
            fit = await plan_fit(talk.answerer, sent, system=system, settings=settings, reserve=reserve)
            oldest = sent[: fit.dropped]
            text = await talk.run_until_stopped(summarise(talk.answerer, oldest, system=system, settings=settings))
        except LocaldflashError as error:
            return str(error)
        if text is None:
            return "not sent"
        title = f"Sent instead of the oldest {talk.dropped + fit.dropped} messages"
        self.refresh_status()
        summary = await self.push_screen_wait(TextDialog(title, text, lines=10, waits_for_quiet=True))
        if not summary or not summary.strip():
            return "not sent"
        talk.dropped += fit.dropped
        talk.summary, talk.context_tokens = summary.strip(), None
        self.say(f"a summary is sent instead of the {talk.dropped} messages at the top")
        return ""
