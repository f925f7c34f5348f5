"""One request from a prompt's ids to text: generated, detokenized, ended where it should. Every front end calls it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from localdflash.base.errors import ContextOverflow
from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.text.stream import AnswerText, Detokenizer, Ending, TextDecoder
from localdflash.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prepared:
    """A request that has not started, the strings that end its text, and a maker of anything else that ends it."""

    request: Request
    stops: tuple[str, ...] = ()
    ending: Callable[[], Ending] | None = None
    truncated: bool = False  # a part of the prompt was left out, for it did not fit
    spelling: Callable[[Tokenizer], TextDecoder] = Detokenizer


def bound(request: Request, context: int) -> None:
    """Limit an answer to the room that its prompt leaves; ContextOverflow if that is less than one token."""
    room = context - len(request.ids)
    if room < min(request.max_tokens, 1):
        raise ContextOverflow(f"the prompt has {len(request.ids)} tokens: the context holds {context}; shorten it")
    request.max_tokens = min(request.max_tokens, room)


class Answer:
    """Iterate over it for text as it is generated; `request` tells what happened, `ids` what was committed."""

    def __init__(self, loaded: LoadedPair, prepared: Prepared) -> None:
        self.request = request = prepared.request
        if len(request.ids) + request.max_tokens > loaded.context:
            raise ContextOverflow(
                f"the prompt has {len(request.ids)} tokens and the answer may have {request.max_tokens}: the context"
                f" holds {loaded.context}; shorten one of them"
            )
        self.ids: list[int] = []
        self._pair = loaded.pair
        ending = prepared.ending() if prepared.ending else None
        self._text = AnswerText(prepared.spelling(loaded.tokenizer), request.ends, prepared.stops, ending)

    @property
    def finish(self) -> str:
        """Why the text ended: what its ending says, else "stop", "length", "context" or "cancelled"."""
        reason = self.request.finish_reason
        return self._text.reason if reason == "stop" and self._text.reason else reason

    def __iter__(self) -> Iterator[str]:
        for step in generate(self._pair, self.request):
            self.ids += step.tokens
            if text := self._text.push(step.tokens):
                yield text
            if self._text.stopped:
                self.request.finish_reason = "stop"
                break
        if rest := self._text.finish():
            yield rest
