"""A made-up server on loopback: what it answers is given for each path, and what it was asked is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from localdflash.server.address import Address
from tests.lsp import wire

Json = dict[str, Any]
STREAM = "text/event-stream"
LINES = "application/x-ndjson"


@dataclass
class Said:
    """An answer: JSON, or with `stream` the parts of a stream; `hangs`: it does not end by itself."""

    content: Any = None
    status: int = 200
    stream: list[bytes] | None = None
    kind: str = "application/json"
    hangs: bool = False


def sse(*parts: object) -> Said:
    """A stream of events, as llama-server and OpenAI send it."""
    return Said(
        stream=[f"data: {json.dumps(part)}\n\n".encode() for part in parts] + [b"data: [DONE]\n\n"], kind=STREAM
    )


def lines(*parts: object) -> Said:
    """A stream of lines of JSON, as Ollama sends it."""
    return Said(stream=[f"{json.dumps(part)}\n".encode() for part in parts], kind=LINES)


Answer = Said | Callable[[Json], Said]


@dataclass
class MadeUp:
    """The server. A path that has no answer is not there (404); `key` is the one that every request needs."""

    answers: dict[str, Answer]
    key: str = ""
    port: int = 0
    asked: list[tuple[str, Json]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client hung up within an answer
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> Address:
        return Address.of_url(self.url, self.key)

    def bodies(self, path: str) -> list[Json]:
        """Return the bodies that this path was sent."""
        return [body for one, body in self.asked if one == path]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ", 2)[1].partition("?")[0]
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        data = await reader.readexactly(int(headers["content-length"]))
        body = json.loads(data) if data else {}
        self.asked.append((path, body))
        said = self._said(path, body, headers)
        if said.stream is None:
            writer.write(_whole(said))
            return True
        writer.write(_head(said, "transfer-encoding: chunked"))
        for part in said.stream:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
        if said.hangs:
            await reader.read()  # until the client hangs up
            self.left.set()
            return False
        writer.write(b"0\r\n\r\n")
        return True

    def _said(self, path: str, body: Json, headers: Mapping[str, str]) -> Said:
        if self.key and headers.get("authorization") != f"bearer {self.key.lower()}":
            return Said({"error": {"message": "Invalid API Key", "code": 401}}, 401)
        answer = self.answers.get(path, Said({"error": {"message": "File Not Found", "code": 404}}, 404))
        return answer(body) if callable(answer) else answer


def _whole(said: Said) -> bytes:
    data = said.content if isinstance(said.content, bytes) else json.dumps(said.content).encode()
    return _head(said, f"content-length: {len(data)}") + data


def _head(said: Said, more: str) -> bytes:
    return f"HTTP/1.1 {said.status} x\r\ncontent-type: {said.kind}\r\n{more}\r\n\r\n".encode()


@asynccontextmanager
async def serving(answers: dict[str, Answer], key: str = "", port: int = 0) -> AsyncIterator[MadeUp]:
    """Run such a server."""
    made_up = MadeUp(answers, key)
    async with await asyncio.start_server(made_up.connected, "127.0.0.1", port) as server:
        made_up.port = server.sockets[0].getsockname()[1]
        yield made_up
    for writer in made_up.writers:
        writer.transport.abort()
    await asyncio.sleep(0)


# What the kinds of server say, as llama-server of llama.cpp 0.3.36's sources said it, and as the others document it.

QWEN = {"<|fim_prefix|>": 3, "<|fim_suffix|>": 4, "<|fim_middle|>": 5, "<|endoftext|>": 0, "<|fim_pad|>": 6}


def tokenize(markers: Mapping[str, int], blank: str = "") -> Callable[[Json], Said]:
    """llama-server's /tokenize for a vocabulary with these markers."""

    def answer(body: Json) -> Said:
        text = body["content"]
        if body.get("with_pieces"):
            return Said({"tokens": [{"id": 100 + ord(one), "piece": blank + one} for one in text]})
        return Said({"tokens": [markers[text]] if text in markers else [100 + ord(one) for one in text]})

    return answer


def llama_said(text: str, token: int = 50, logprob: float | None = -0.1) -> Json:
    """One event of llama-server's stream."""
    told = (
        [] if logprob is None else [{"id": token, "token": text, "bytes": [], "logprob": logprob, "top_logprobs": []}]
    )
    return {"index": 0, "content": text, "tokens": [token], "stop": False, "completion_probabilities": told}


LLAMA_END = {"index": 0, "content": "", "tokens": [], "stop": True, "stop_type": "eos", "timings": {}}


def llama(
    *events: Json,
    markers: Mapping[str, int] = QWEN,
    blank: str = "",
    model: str = "/models/Qwen2.5-Coder-1.5B-Q8_0.gguf",
    **more: Answer,
) -> dict[str, Answer]:
    """llama-server with a model of these markers, whose answers are these events."""
    props = {"default_generation_settings": {"n_ctx": 4096, "params": {}}, "model_alias": model}
    return {
        "/props": Said(props),
        "/tokenize": tokenize(markers, blank),
        "/completion": sse(*events, LLAMA_END),
        **{f"/{name}": answer for name, answer in more.items()},
    }


def ollama(
    *events: Json, models: Mapping[str, Json] | None = None, loaded: list[str] | None = None, **more: Answer
) -> dict[str, Answer]:
    """Ollama with these models, by what /api/show says of them."""
    models = {"qwen2.5-coder:1.5b": QWEN_SHOWN} if models is None else models

    def show(body: Json) -> Said:
        known = models.get(body["model"])
        return Said(known) if known else Said({"error": f"model '{body['model']}' not found"}, 404)

    return {
        "/api/version": Said({"version": "0.12.6"}),
        "/api/tags": Said({"models": [{"name": name, "model": name} for name in models]}),
        "/api/ps": Said({"models": [{"name": name} for name in loaded or ()]}),
        "/api/show": show,
        "/api/generate": lines(*events, {"response": "", "done": True, "done_reason": "stop"}),
        **{f"/api/{name}": answer for name, answer in more.items()},
    }


QWEN_SHOWN = {
    "template": "{{- if .Suffix }}<|fim_prefix|>{{ .Prompt }}<|fim_suffix|>{{ .Suffix }}<|fim_middle|>{{- end }}",
    "details": {"family": "qwen2"},
    "capabilities": ["completion", "insert"],
}


def openai(
    *texts: str,
    models: tuple[str, ...] = ("some-model",),
    suffix: bool = True,
    markers: Mapping[str, int] | None = None,
    completions: Answer | None = None,
) -> dict[str, Answer]:
    """A server of OpenAI's completions; `suffix`: it counts it. `markers` are tokens of its vocabulary."""

    def count(text: str) -> int:
        for marker in markers or ():
            text = text.replace(marker, "\0")
        return len(text)

    def complete(body: Json) -> Said:
        if body["model"] not in models:
            return Said({"error": {"message": f"The model `{body['model']}` does not exist"}}, 404)
        if body.get("stream"):
            parts = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
            return sse(*parts, {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        counted = count(body["prompt"]) + (count(body.get("suffix", "")) if suffix else 0)
        choice = {"index": 0, "text": "x", "logprobs": None, "finish_reason": "length"}
        return Said({"choices": [choice], "usage": {"prompt_tokens": counted}})

    return {
        "/v1/models": Said({"object": "list", "data": [{"id": name} for name in models]}),
        "/v1/completions": completions or complete,
    }


BODY: Json = {
    "path": "a.py",
    "language": "python",
    "prefix": "import os\n\n\ndef add(first, second):\n",
    "middle": "    retu",
    "suffix": "\n\n\nprint(add(1, 2))\n",
    "context": [{"kind": "open", "name": "b.py", "text": "def sub(a, b):\n    return a - b\n", "weight": 1.0}],
    "copies": [],
    "max_tokens": 96,
}


def in_thread(answers: dict[str, Answer]) -> AbstractContextManager[MadeUp]:
    """Run such a server for who has no event loop."""
    return wire.in_thread(serving(answers))
