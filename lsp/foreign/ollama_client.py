"""Ollama: our raw prompt if the model's format is known, otherwise `suffix` and its template."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from localdflash.lsp.foreign.llama_client import NEUTRAL, with_penalty
from localdflash.lsp.foreign.pieces import (
    InfillServer,
    InfillTask,
    JsonLines,
    Piece,
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
                yield _piece(chunk)

    def _body(self, task: InfillTask, sampling: Sampling) -> dict[str, object]:
        options: dict[str, object] = {"num_predict": task.max_tokens, **NEUTRAL, **with_penalty(sampling)}
        body: dict[str, object] = {"model": self.model, "stream": True, "logprobs": True, "options": options}
        if isinstance(self._prompt_builder, PromptBuilder):
            form = self._prompt_builder.form
            options["stop"] = [*form.stop_strings, *form.markers, *form.stops]
            return body | {"prompt": self._prompt_builder.render(task), "raw": True}
        before, after = self._prompt_builder.split(task)
        return body | {"prompt": before, "suffix": after}


def _piece(chunk: _OllamaChunk) -> Piece:
    if chunk.done:
        return Piece(chunk.response, tokens=0, end="length" if chunk.done_reason == "length" else "stop")
    logprobs = tuple(one.logprob for one in chunk.logprobs or () if one.logprob is not None)
    return Piece(chunk.response, logprobs)
