"""App with only a transcript, and helpers for its tests."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from textual.app import ComposeResult
from textual.pilot import Pilot

from localdflash.chat.messages import Message
from localdflash.tui.transcript import Transcript
from tests.tui.stage import Stage


class TranscriptStage(Stage):
    """App that shows messages and records the messages that the transcript posts."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        super().__init__()
        self.messages = messages
        self.transcript = Transcript()
        self.posted: list[object] = []

    def compose(self) -> ComposeResult:
        yield self.transcript

    def on_mount(self) -> None:
        self.transcript.show(self.messages)
        self.transcript.focus()

    def on_transcript_copy_request(self, event: Transcript.CopyRequest) -> None:
        self.posted.append((event.text, event.what))

    def on_transcript_action_request(self, event: Transcript.ActionRequest) -> None:
        self.posted.append((event.index, event.action))

    def on_transcript_link_click(self, event: Transcript.LinkClick) -> None:
        self.posted.append(event.url)

    @property
    def rows(self) -> list[str]:
        """Return the rows on the screen as they were drawn."""
        width = self.transcript.scrollable_content_region.width
        return [strip.crop(0, width).text.rstrip() for strip in self.screen._compositor.render_strips()]

    @property
    def screen_text(self) -> str:
        return "\n".join(self.rows)


@asynccontextmanager
async def shown_messages(
    messages: Sequence[Message] = (), size: tuple[int, int] = (60, 20)
) -> AsyncGenerator[tuple[TranscriptStage, Pilot[Any]]]:
    """Run the app with these messages."""
    stage = TranscriptStage(messages)
    async with stage.run_test(size=size) as pilot:
        yield stage, pilot


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def conversation(turns: int, lines: int = 6) -> list[Message]:
    """Return questions and answers with distinct words."""
    messages: list[Message] = []
    for turn in range(turns):
        messages.append(Message("user", f"question {turn}"))
        body = "\n".join(f"    value_{turn}_{n} = {n}" for n in range(lines))
        messages.append(
            Message("assistant", f"Answer {turn}.\n\n```python\ndef f():\n{body}\n```\n\nDone {turn}.", finish="stop")
        )
    return messages
