"""Clients for /v1/completions and Ollama: our own FIM prompt if the markers are known, else `prompt` and `suffix`."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import chain

import msgspec

from localdflash.lsp.foreign.llama_client import NEUTRAL, with_penalty
from localdflash.lsp.foreign.pieces import InfillServer, InfillTask, JsonLines, Piece, Sampling, StreamChunk, decoder
from localdflash.lsp.foreign.remote_prompt import PrefixSuffixBuilder, PromptBuilder
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection

MAX_STOP_STRINGS = 4  # of a request


class _Probabilities(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None


class _OpenAiChoice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Probabilities | None = None


class _OpenAiChunk(StreamChunk):
    choices: list[_OpenAiChoice] = msgspec.field(default_factory=list)


class OpenAiClient(InfillServer):
    """Connection to a server with /v1/completions; `logprobs`: the server reports probabilities."""

    def __init__(
        self, address: Address, model: str, prompt_builder: PromptBuilder | PrefixSuffixBuilder, *, logprobs: bool
    ) -> None:
        super().__init__(model, ClientConnection(address, decoder(_OpenAiChunk)))
        self._prompt_builder, self._logprobs = prompt_builder, logprobs

    async def stream(self, task: InfillTask, sampling: Sampling, word: str) -> AsyncGenerator[Piece]:
        """See `InfillServer`."""
        if not task.max_tokens:
            return
        async with aclosing(self._connection.events("/v1/completions", self._body(task, sampling))) as events:
            async for chunk in events:
                for piece in chain.from_iterable(map(pieces_of, chunk.choices)):
                    yield piece

    def _body(self, task: InfillTask, sampling: Sampling) -> dict[str, object]:
        # greedy: without the seed, which some servers refuse
        sampling_fields = sampling.fields() if sampling.temperature else {"temperature": 0.0}
        body = {"model": self.model, "max_tokens": task.max_tokens, "stream": True, **sampling_fields}
        if self._logprobs:
            body["logprobs"] = 1
        if isinstance(self._prompt_builder, PromptBuilder):
            form = self._prompt_builder.form
            stops = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._prompt_builder.render(task), "stop": stops[:MAX_STOP_STRINGS]}
        before, after = self._prompt_builder.split(task)
        return body | {"prompt": before, "suffix": after}


def pieces_of(choice: _OpenAiChoice) -> list[Piece]:
    """Return the pieces of a choice: one per token if the reported tokens add up to the text."""
    text, reported = choice.text or "", choice.logprobs or _Probabilities()
    end = {None: "", "length": "length"}.get(choice.finish_reason, "stop")
    tokens, logprobs = reported.tokens or [], reported.token_logprobs or []
    if len(tokens) != len(logprobs) or "".join(tokens) != text:
        known = tuple(one for one in logprobs if one is not None)
        return [Piece(text, known if len(known) > 1 else (), max(len(logprobs), int(bool(text))), end)]
    pieces = [
        Piece(token, () if logprob is None else (logprob,)) for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    return [*pieces, Piece("", tokens=0, end=end)] if end else pieces


class _OllamaProbability(msgspec.Struct):
    logprob: float | None = None


class _OllamaChunk(StreamChunk):
    response: str = ""
    done: bool = False
    done_reason: str = ""
    logprobs: list[_OllamaProbability] | None = None


class OllamaClient(InfillServer):
    """Connection to Ollama."""

    def __init__(self, address: Address, model: str, prompt_builder: PromptBuilder | PrefixSuffixBuilder) -> None:
        super().__init__(model, ClientConnection(address, decoder(_OllamaChunk), JsonLines))
        self._prompt_builder = prompt_builder

    async def stream(self, task: InfillTask, sampling: Sampling, word: str) -> AsyncGenerator[Piece]:
        """See `InfillServer`."""
        if not task.max_tokens:
            return
        async with aclosing(self._connection.events("/api/generate", self._body(task, sampling))) as lines:
            async for chunk in lines:
                yield _ollama_piece(chunk)

    def _body(self, task: InfillTask, sampling: Sampling) -> dict[str, object]:
        options: dict[str, object] = {"num_predict": task.max_tokens, **NEUTRAL, **with_penalty(sampling)}
        body: dict[str, object] = {"model": self.model, "stream": True, "logprobs": True, "options": options}
        if isinstance(self._prompt_builder, PromptBuilder):
            form = self._prompt_builder.form
            options["stop"] = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._prompt_builder.render(task), "raw": True}
        before, after = self._prompt_builder.split(task)
        return body | {"prompt": before, "suffix": after}


def _ollama_piece(chunk: _OllamaChunk) -> Piece:
    if chunk.done:
        return Piece(chunk.response, tokens=0, end="length" if chunk.done_reason == "length" else "stop")
    logprobs = tuple(one.logprob for one in chunk.logprobs or () if one.logprob is not None)
    return Piece(chunk.response, logprobs)
