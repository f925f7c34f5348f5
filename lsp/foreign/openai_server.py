"""Servers that speak OpenAI's /v1/completions: with a prompt of ours where they take raw ones, else with `suffix`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from localdflash.lsp.foreign.pieces import Piece, Reply, Saying, decoder
from localdflash.lsp.foreign.place import Draw, Place
from localdflash.lsp.foreign.remote_prompt import Prompts, Sides
from localdflash.server.address import Address
from localdflash.server.client import Connection

MOST_STOPS = 4  # strings that a request may name


class _Probabilities(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Probabilities | None = None


class _Said(Saying):
    choices: list[_Choice] = msgspec.field(default_factory=list)


class OpenAi:
    """One connection to such a server. `how` makes its prompts; `logprobs`: it tells how sure the model is."""

    def __init__(self, address: Address, model: str, how: Prompts | Sides, *, logprobs: bool) -> None:
        self.model, self._how, self._logprobs = model, how, logprobs
        self._connection = Connection(address, decoder(_Said))

    def fill(self, place: Place, draw: Draw) -> Reply:
        """See `FillServer`."""
        return Reply(self._pieces(place, draw))

    def close(self) -> None:
        """See `FillServer`."""
        self._connection.close()

    async def _pieces(self, place: Place, draw: Draw) -> AsyncGenerator[Piece]:
        if not place.max_tokens:
            return
        async with aclosing(self._connection.events("/v1/completions", self._body(place, draw))) as events:
            async for said in events:
                for choice in said.choices:
                    for piece in pieces_of(choice):
                        yield piece

    def _body(self, place: Place, draw: Draw) -> dict[str, object]:
        # a seed that nothing needs may be refused
        drawing = draw.fields() if draw.temperature else {"temperature": 0.0}
        body = {"model": self.model, "max_tokens": place.max_tokens, "stream": True, **drawing}
        if self._logprobs:
            body["logprobs"] = 1
        if isinstance(self._how, Prompts):
            form = self._how.form
            stops = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._how.spelled(place), "stop": stops[:MOST_STOPS]}
        before, after = self._how.of(place)
        return body | {"prompt": before, "suffix": after}


def pieces_of(choice: _Choice) -> list[Piece]:
    """The pieces of an event: one for each token where the tokens are told, and are the text."""
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
