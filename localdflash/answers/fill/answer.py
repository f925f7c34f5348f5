"""One completion in this process: what the daemon does for /complete, for a pair that nobody else uses."""

from collections.abc import Iterator

from localdflash.answers.fill.filler import Filling
from localdflash.engine.generate import generate
from localdflash.engine.pair import Cancelled, never
from localdflash.loading.load import LoadedPair
from localdflash.text.stream import AnswerText


class Completion:
    """Iterate for the text; `finish` and `request` tell afterwards how it went."""

    def __init__(self, loaded: LoadedPair, filling: Filling, cancelled: Cancelled = never) -> None:
        self.request = filling.requests[0]
        self.request.cancelled = cancelled
        self.finish = ""
        self._loaded, self._filling = loaded, filling

    def __iter__(self) -> Iterator[str]:
        text = AnswerText(self._loaded.tokenizer, self.request.ends, self._filling.stops)
        stopping = self._filling.stopping()
        for step in generate(self._loaded.pair, self.request):
            yield stopping.push(text.push(step.tokens))
            if text.stopped or stopping.ended:
                self.request.finish = "stop"
                break
        yield stopping.push(text.finish()) + stopping.finish()
        ended = self.request.finish
        self.finish = "length" if ended in ("length", "context") else ended
        if ended == "stop":
            self.finish = stopping.reason or ended
