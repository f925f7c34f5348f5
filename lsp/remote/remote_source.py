"""Completions by a server with POST /v1/completions, ended where our own engine would end them."""

import math
import time
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import PureWindowsPath
from typing import Any, NamedTuple

import msgspec

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.endings import plan_ending
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import Gap
from localdflash.lsp.engine_completer import Event, decode_event
from localdflash.lsp.remote.remote_prompt import RemotePrompt
from localdflash.server.address import Address
from localdflash.server.client import ClientConnection
from localdflash.text.syntax import language_of

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"
LOGPROBS = {"logprobs": 1, "n_probs": 1}  # OpenAI's and llama-server's names
RECHECK_SECONDS = 5.0  # shorter than a server's restart with another model
VARIED_TEMPERATURE = 0.8  # lowest temperature of all texts of a request but the first
Fields = dict[str, object]


def gap_of(body: Mapping[str, Any]) -> tuple[Gap, list[ContextPiece]]:
    """Return the gap and the context in the body of a POST /complete, the request that our own engine gets."""
    path = " ".join(body.get("path", "").split())
    language, sides = language_of(path, body.get("language", "")), (body["prefix"], body["middle"], body["suffix"])
    gap = Gap(path, language, *sides, first_line=body.get("first_line", 0), closers=body.get("closed", ""))
    others = [{**part, "name": " ".join(part["name"].split())} for part in body.get("context", ())]
    return gap, [ContextPiece(**part) for part in others]


def sampling_of(body: Mapping[str, Any]) -> list[Fields]:
    """Return the sampling fields of each requested text: the first as requested, further texts with more variation."""
    given = {name: body[name] for name in ("top_k", "top_p", "min_p", "repetition_penalty") if name in body}
    if "repetition_penalty" in given:
        given["repeat_penalty"] = given["repetition_penalty"]  # llama-server's name
    temperature, seed = body.get("temperature", 0.0), body.get("seed") or 0
    # A greedy request has no seed, since some servers refuse it.
    first = {**given, "temperature": temperature, **({"seed": seed} if temperature else {})}
    varied = {**given, "temperature": max(temperature, VARIED_TEMPERATURE)}
    return [first, *({**varied, "seed": seed + number} for number in range(1, body.get("count", 1)))]


class Piece(NamedTuple):
    """Part of a text; `logprob` if it is one token whose log-probability the server reports."""

    text: str
    logprob: float | None = None


class _TokenLogprob(msgspec.Struct):
    token: str = ""
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    content: list[_TokenLogprob] | None = None  # llama-server's form

    def pieces(self) -> list[Piece]:
        if self.content is not None:
            return [Piece(one.token, one.logprob) for one in self.content]
        return list(map(Piece, self.tokens or (), self.token_logprobs or ()))


class CompletionPart(msgspec.Struct):
    """Part of one text."""

    text: str | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    def pieces(self) -> list[Piece]:
        """Return one piece per token if the reported tokens add up to the text, else the text as one piece."""
        text, pieces = self.text or "", self.logprobs.pieces() if self.logprobs else []
        return pieces if "".join(piece.text for piece in pieces) == text else [Piece(text)]


class CompletionChunk(msgspec.Struct):
    """Part of an answer."""

    choices: list[CompletionPart]


class RemoteSource:
    """`CompletionSource` for one model. `listed` are the models that the server listed at detection."""

    def __init__(
        self, address: Address, model_id: str, listed: Iterable[str], prompt: RemotePrompt, *, logprobs: bool
    ) -> None:
        self._server_name, self._model_id, self._listed = address.display_name, model_id, {*listed}
        is_file = model_id.endswith(".gguf")  # then the display name is without folder and suffix
        self.model = PureWindowsPath(model_id).stem if is_file else model_id
        self.prompt, self._logprobs = prompt, LOGPROBS if logprobs else {}
        self._connection = ClientConnection(address, partial(decode_event, CompletionChunk))
        self._checked_at = time.monotonic()

    async def complete(self, body: Mapping[str, Any]) -> AsyncGenerator[Event]:
        """Yield the events of all requested texts, one text after the other; none if no token is requested."""
        if not body["max_tokens"]:
            return
        await self._check_models()
        gap, others = gap_of(body)
        gap, ending = plan_ending(gap, others, body.get("mode", "auto"), body.get("least_sure", 0.0))
        request = {"model": self._model_id, "max_tokens": body["max_tokens"], "stream": True, **self._logprobs}
        request |= self.prompt.fields(gap, others, body["max_tokens"])
        for index, sampling in enumerate(sampling_of(body)):
            async with aclosing(_events(self.choices({**request, **sampling}), ending(), index)) as events:
                async for event in events:
                    yield {**event, "model": self.model}
        self._checked_at = time.monotonic()

    async def choices(self, request: Fields) -> AsyncGenerator[CompletionPart]:
        """Yield the parts of the answer to a request. Closing the generator cancels the request."""
        async with aclosing(self._connection.events(COMPLETIONS, request)) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    yield choice

    async def _check_models(self) -> None:
        """Raise EngineDisconnect if the server's models changed since detection; ask once per RECHECK_SECONDS."""
        if not self._listed or time.monotonic() - self._checked_at < RECHECK_SECONDS:
            return
        try:
            listed = {*model_ids(await self._connection.get(MODELS))}
        except LocaldflashError:
            listed = set()
        if listed != self._listed:
            raise EngineDisconnect(f"{self._server_name} is not the same server any more")
        self._checked_at = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


async def _events(
    choices: AsyncGenerator[CompletionPart], ending: PresentableEnding, index: int
) -> AsyncGenerator[Event]:
    """Yield the events of text `index`, up to the end by the server or by `ending`."""
    confidence: float | None = None
    tokens, finish, began = 0, "", time.monotonic()
    async with aclosing(choices):
        async for choice in choices:
            for piece in choice.pieces():
                tokens += bool(piece.text)
                if confidence is None and piece.logprob is not None:
                    confidence = math.exp(piece.logprob)
                if text := ending.push(*piece):
                    yield {"index": index, "text": text, "confidence": confidence}
                if ending.ended:
                    break
            finish = choice.finish_reason or ""
            if ending.ended or finish:
                break
    if text := ending.finish():
        yield {"index": index, "text": text, "confidence": confidence}
    finish = ending.reason or ("length" if finish == "length" else "stop")
    end: Event = {"index": index, "text": "", "finish": finish, "tokens": tokens}
    if took := time.monotonic() - began:
        end["timings"] = {"predicted_per_second": tokens / took}  # `took` includes the prompt's evaluation
    yield end


def objects(content: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the objects in the list `name` of a response; [] if there is no such list."""
    found = content.get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def model_ids(content: Mapping[str, Any]) -> list[str]:
    """Return the ids in the response of GET /v1/models."""
    return [str(one.get("id", "")) for one in objects(content, "data")]
