"""One request from a prompt's ids to text: generation, detokenizing, stop strings. What every front end calls."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from localdflash.engine.generate import Request, generate
from localdflash.engine.prefix import PrefixCache
from localdflash.errors import ContextOverflow
from localdflash.loading.load import LoadedPair
from localdflash.text.stream import AnswerText


@dataclass(frozen=True)
class Prepared:
    """A request that has not started, and the strings that end its text."""

    request: Request
    stops: tuple[str, ...] = ()
    truncated: bool = False  # a part of the prompt was left out, for it did not fit


def bound(request: Request, context: int) -> None:
    """Keep an answer to the room that its prompt leaves; ContextOverflow where that is less than one token."""
    room = context - len(request.ids)
    if room < min(request.max_tokens, 1):
        raise ContextOverflow(f"the prompt has {len(request.ids)} tokens: the context holds {context}; shorten it")
    request.max_tokens = min(request.max_tokens, room)


class Answer:
    """Iterate over it for text as it is generated; `request` tells what happened, `ids` what was committed."""

    def __init__(
        self, loaded: LoadedPair, request: Request, stops: Sequence[str] = (), prefixes: PrefixCache | None = None
    ) -> None:
        context = loaded.context
        if len(request.ids) + request.max_tokens > context:
            raise ContextOverflow(
                f"the prompt has {len(request.ids)} tokens and the answer may have {request.max_tokens}: the context"
                f" holds {context}; shorten one of them"
            )
        self.request = request
        self.ids: list[int] = []
        self._loaded, self._prefixes = loaded, prefixes
        self._text = AnswerText(loaded.tokenizer, request.ends, stops)

    def __iter__(self) -> Iterator[str]:
        for step in generate(self._loaded.pair, self.request, self._prefixes):
            self.ids += step.tokens
            if text := self._text.push(step.tokens):
                yield text
            if self._text.stopped:
                self.request.finish = "stop"
                return
        if rest := self._text.finish():
            yield rest
