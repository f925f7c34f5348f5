"""Servers with OpenAI's /v1/completions: our raw prompt if possible, otherwise `suffix`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import chain

import msgspec

from localdflash.lsp.foreign.pieces import InfillServer, InfillTask, Piece, Reply, Sampling, StreamChunk, decoder
from localdflash.lsp.foreign.remote_prompt import PrefixSuffixBuilder, PromptBuilder
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection

MAX_STOPS = 4  # strings that a request may name


class _Probabilities(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class _OpenAiChoice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Probabilities | None = None


class _OpenAiChunk(StreamChunk):
    choices: list[_OpenAiChoice] = msgspec.field(default_factory=list)


class OpenAi(InfillServer):
    """A connection to such a server. `how` makes its prompts; `logprobs`: the server reports probabilities."""

    def __init__(
        self, address: Address, model: str, how: PromptBuilder | PrefixSuffixBuilder, *, logprobs: bool
    ) -> None:
        super().__init__(model, ClientConnection(address, decoder(_OpenAiChunk)))
        self._how, self._logprobs = how, logprobs

    def fill(self, place: InfillTask, draw: Sampling) -> Reply:
        """See `InfillServer`."""
        return Reply(self._pieces(place, draw))

    async def _pieces(self, place: InfillTask, draw: Sampling) -> AsyncGenerator[Piece]:
        if not place.max_tokens:
            return
        async with aclosing(self._connection.events("/v1/completions", self._body(place, draw))) as events:
            async for said in events:
                for piece in chain.from_iterable(map(pieces_of, said.choices)):
                    yield piece

    def _body(self, place: InfillTask, draw: Sampling) -> dict[str, object]:
        # a seed that nothing needs may be refused
        drawing = draw.fields() if draw.temperature else {"temperature": 0.0}
        body = {"model": self.model, "max_tokens": place.max_tokens, "stream": True, **drawing}
        if self._logprobs:
            body["logprobs"] = 1
        if isinstance(self._how, PromptBuilder):
            form = self._how.form
            stops = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._how.spelled(place), "stop": stops[:MAX_STOPS]}
        before, after = self._how.of(place)
        return body | {"prompt": before, "suffix": after}


def pieces_of(choice: _OpenAiChoice) -> list[Piece]:
    """Return the pieces of an event: one per token if the tokens are reported and spell the text."""
    text, told = choice.text or "", choice.logprobs or _Probabilities()
    end = {None: "", "length": "length"}.get(choice.finish_reason, "stop")
    tokens, logprobs = told.tokens or [], told.token_logprobs or []
    if len(tokens) != len(logprobs) or "".join(tokens) != text:
        known = tuple(one for one in logprobs if one is not None)
        return [Piece(text, known if len(known) > 1 else (), max(len(logprobs), int(bool(text))), end)]
    pieces = [
        Piece(token, () if logprob is None else (logprob,)) for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    return [*pieces, Piece("", tokens=0, end=end)] if end else pieces
