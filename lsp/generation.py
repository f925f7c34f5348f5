"""The one generation of a client: a request to the engine whose text makes suggestions grow."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

from localdflash.lsp.engine_completer import CompletionClient, Event
from localdflash.lsp.suggestions import FAILED, STOPPED, Suggestion

CANCELLED = "cancelled"  # how an answer ends that the engine gave up for somebody else


class Generator:
    """Runs generations; starting another one stops the running one.

    `beat` is called at every start, growth and end, `begun` with the time to first text, `ended` with the last event.
    """

    def __init__(
        self,
        completer: CompletionClient,
        beat: Callable[[], None],
        begun: Callable[[float], None],
        ended: Callable[[Event], None],
    ) -> None:
        self._completer, self._beat, self._begun, self._ended = completer, beat, begun, ended
        self._task: asyncio.Task[None] | None = None
        self._alone = asyncio.Lock()  # a stopped request's connection is closed before another one is made
        self.growing: Sequence[Suggestion] = ()
        self.uri = ""  # of the document that it is for

    def start(self, uri: str, body: Mapping[str, object], suggestions: Sequence[Suggestion] = ()) -> None:
        """Request one suggestion for each choice. With none, the engine only reads the prompt."""
        self.stop()
        self.uri, self.growing = uri, suggestions
        self._task = asyncio.create_task(self._run(body, suggestions))
        self._beat()

    def stop(self) -> None:
        """Stop the running generation: at once for the client, within one step for the engine."""
        if self._task:
            self._task.cancel()
        _cut_off(self.growing, STOPPED)
        self._task, self.growing = None, ()

    @property
    def busy(self) -> bool:
        """Return whether a generation is running."""
        return self._task is not None and not self._task.done()

    async def close(self) -> None:
        """Stop, and wait until the connection is closed."""
        self.stop()
        async with self._alone:
            return

    async def _run(self, body: Mapping[str, object], suggestions: Sequence[Suggestion]) -> None:
        asked, silent = time.monotonic(), bool(suggestions)
        try:
            async with self._alone, aclosing(self._completer.complete(body)) as events:
                async for event in events:
                    if silent:
                        silent = False
                        self._begun(time.monotonic() - asked)
                    self._take(event, suggestions)
                    self._beat()
        finally:
            _cut_off(suggestions, FAILED)  # those that neither came to their end nor were stopped
            self._beat()

    def _take(self, event: Event, suggestions: Sequence[Suggestion]) -> None:
        index = event["index"]
        if index >= len(suggestions):
            return
        suggestion = suggestions[index]
        if not suggestion.text:
            suggestion.confidence = event.get("confidence")
        suggestion.text += event["text"]
        finish = event.get("finish")
        if finish == CANCELLED:
            suggestion.cut_off(FAILED)
        elif finish:
            suggestion.ended = finish
            if event.get("tokens"):
                self._ended(event)


def _cut_off(suggestions: Sequence[Suggestion], reason: str) -> None:
    for suggestion in suggestions:
        suggestion.cut_off(reason)
