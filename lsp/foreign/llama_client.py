"""llama-server: our prompt for /completion if the model's format is known, otherwise /infill.

Code is sent as text and markers as ids, so a file that spells a marker cannot change the prompt.
"""

import math
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.code.fim.healing import unfinished_word
from localdflash.lsp.foreign.pieces import InfillServer, InfillTask, Piece, Sampling, StreamChunk, decoder
from localdflash.lsp.foreign.remote_prompt import Marker, PrefixSuffixBuilder, PromptBuilder
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection

RECHECK_SECONDS = 5.0  # a server cannot be restarted with another model in less
TOP_LOGPROBS = 16  # tokens by which it is judged how likely one of those is that fit
NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # the server's own defaults draw from fewer tokens


class Probability(msgspec.Struct):
    """Probability of a token, with those of the likeliest tokens."""

    logprob: float | None = None
    token: str = ""
    top_logprobs: "list[Probability]" = msgspec.field(default_factory=list)


class _LlamaChunk(StreamChunk):
    content: str = ""
    tokens: list[int] = msgspec.field(default_factory=list)
    stop: bool = False
    stop_type: str = ""
    completion_probabilities: list[Probability] = msgspec.field(default_factory=list)


class _LlamaConnection(InfillServer):
    """Connection to llama-server's native endpoints. `ends` are additional end-of-text ids."""

    def __init__(self, address: Address, model: str, ends: frozenset[int] = frozenset()) -> None:
        super().__init__(model, ClientConnection(address, decoder(_LlamaChunk)))
        self._ends, self._address = ends, address
        self._known = time.monotonic()  # when the model was still the same

    def word(self, task: InfillTask) -> str:
        """See `InfillServer`."""
        return unfinished_word(task.line)

    @abstractmethod
    def request(self, task: InfillTask, word: str) -> tuple[str, dict[str, object]]:
        """Return path and prompt of a request for a text that begins with `word`."""

    async def stream(self, task: InfillTask, sampling: Sampling, word: str) -> AsyncGenerator[Piece]:
        """See `InfillServer`."""
        target, prompt = self.request(task, word)
        body = {
            "n_predict": task.max_tokens,
            **NEUTRAL,
            **with_penalty(sampling),
            "n_probs": TOP_LOGPROBS if word else 1,
            "cache_prompt": True,
            "stream": True,
            **prompt,
            **({"grammar": begins_with(word)} if word else {}),
        }
        await self._check()
        async with aclosing(self._connection.events(target, body)) as events:
            async for chunk in events:
                yield self._piece(chunk, word)
                word = word[len(chunk.content) :]
        self._known = time.monotonic()

    async def _check(self) -> None:
        """Check from time to time that the server still has the same model, and so the same marker ids."""
        if time.monotonic() - self._known < RECHECK_SECONDS:
            return
        try:
            model = model_of(await self._connection.get("/props"))
        except LocaldflashError:
            model = ""
        if model != self.model:
            raise EngineDisconnect(f"{self._address.place} is not the same server any more")
        self._known = time.monotonic()

    def _piece(self, chunk: _LlamaChunk, word: str) -> Piece:
        if chunk.stop:
            end = "length" if chunk.stop_type == "limit" else "stop"
            return Piece(chunk.content, tokens=0, end=end)
        if self._ends.intersection(chunk.tokens):
            return Piece("", tokens=0, end="stop")
        logprobs = (logprob_of(one, word) for one in chunk.completion_probabilities)
        return Piece(chunk.content, tuple(one for one in logprobs if one is not None), len(chunk.tokens))


class RawLlama(_LlamaConnection):
    """llama-server with a model of a known format. `ids` are the markers in its vocabulary."""

    def __init__(self, address: Address, model: str, prompts: PromptBuilder, ids: Mapping[str, int]) -> None:
        form = prompts.form
        super().__init__(address, model, frozenset(ids[one] for one in (*form.markers, *form.stops) if one in ids))
        self._prompts, self._ids = prompts, ids

    def request(self, task: InfillTask, word: str) -> tuple[str, dict[str, object]]:
        """See `_LlamaConnection`."""
        return "/completion", {"prompt": self._prompt(task, word), "stop": list(self._prompts.form.stop_strings)}

    def _prompt(self, task: InfillTask, word: str) -> list[str | int]:
        """Return strings and ids. The first is always a string, because the server puts BOS before a string."""
        first, *others = self._prompts.parts(task, word)
        mixed: list[str | int] = [str(first)] if isinstance(first, Marker) else [*self._prompts.broken(first)]
        for part in others:
            mixed += [self._ids[part]] if isinstance(part, Marker) else self._prompts.broken(part)
        return mixed


class InfillLlama(_LlamaConnection):
    """llama-server with a model whose markers only the server knows."""

    def __init__(self, address: Address, model: str, context: int) -> None:
        super().__init__(address, model)
        self._sides = PrefixSuffixBuilder(context)

    def request(self, task: InfillTask, word: str) -> tuple[str, dict[str, object]]:
        """See `_LlamaConnection`."""
        before, after = self._sides.split(task, word)
        return "/infill", {"input_prefix": before, "input_suffix": after, "input_extra": []}


def model_of(props: Mapping[str, Any]) -> str:
    """Return the model's name, without the folder and suffix of its file."""
    name = str(props.get("model_alias") or props.get("model_path") or "")
    return PureWindowsPath(PurePosixPath(name).name).name.removesuffix(".gguf")


def with_penalty(sampling: Sampling) -> dict[str, object]:
    """Return the sampling fields with llama.cpp's names."""
    fields = sampling.fields()
    return {"repeat_penalty" if name == "repetition_penalty" else name: value for name, value in fields.items()}


def logprob_of(drawn: Probability, word: str) -> float | None:
    """Return the log-probability of a token; within a healed word, conditional on the tokens that can begin it."""
    if drawn.logprob is None or not word:
        return drawn.logprob
    likeliest = {one.token: one.logprob for one in drawn.top_logprobs if one.logprob is not None}
    fitting = [drawn.logprob, *(likeliest[one] for one in likeliest if one != drawn.token and fits(one, word))]
    best = max(fitting)
    return drawn.logprob - best - math.log(math.fsum(math.exp(one - best) for one in fitting))


def fits(token: str, word: str) -> bool:
    """Return whether a text that begins with a word can begin with this token."""
    return bool(token) and (token.startswith(word) or word.startswith(token))


def begins_with(word: str) -> str:
    """Return a llama.cpp grammar for any text that begins with a word."""
    spelled = "".join(f"\\U{ord(one):08X}" for one in word)
    return f'root ::= "{spelled}" .*'
