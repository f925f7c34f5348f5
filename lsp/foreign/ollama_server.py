"""Ollama: our raw prompt if the model's format is known, otherwise `suffix` and its template."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from localdflash.lsp.foreign.llama_server import NEUTRAL, with_penalty
from localdflash.lsp.foreign.pieces import (
    InfillServer,
    InfillTask,
    JsonLines,
    Piece,
    Reply,
    Sampling,
    StreamChunk,
    decoder,
)
from localdflash.lsp.foreign.remote_prompt import PrefixSuffixBuilder, PromptBuilder
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection


class _OllamaProbability(msgspec.Struct):
    logprob: float | None = None


class _OllamaChunk(StreamChunk):
    response: str = ""
    done: bool = False
    done_reason: str = ""
    logprobs: list[_OllamaProbability] | None = None


class Ollama(InfillServer):
    """A connection to Ollama. `how` makes its prompts."""

    def __init__(self, address: Address, model: str, how: PromptBuilder | PrefixSuffixBuilder) -> None:
        super().__init__(model, ClientConnection(address, decoder(_OllamaChunk), JsonLines))
        self._how = how

    def fill(self, place: InfillTask, draw: Sampling) -> Reply:
        """See `InfillServer`."""
        return Reply(self._pieces(place, draw))

    async def _pieces(self, place: InfillTask, draw: Sampling) -> AsyncGenerator[Piece]:
        if not place.max_tokens:
            return
        async with aclosing(self._connection.events("/api/generate", self._body(place, draw))) as lines:
            async for said in lines:
                yield _piece(said)

    def _body(self, place: InfillTask, draw: Sampling) -> dict[str, object]:
        options: dict[str, object] = {"num_predict": place.max_tokens, **NEUTRAL, **with_penalty(draw)}
        body: dict[str, object] = {"model": self.model, "stream": True, "logprobs": True, "options": options}
        if isinstance(self._how, PromptBuilder):
            form = self._how.form
            options["stop"] = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._how.spelled(place), "raw": True}
        before, after = self._how.of(place)
        return body | {"prompt": before, "suffix": after}


def _piece(said: _OllamaChunk) -> Piece:
    if said.done:
        return Piece(said.response, tokens=0, end="length" if said.done_reason == "length" else "stop")
    logprobs = tuple(one.logprob for one in said.logprobs or () if one.logprob is not None)
    return Piece(said.response, logprobs)
