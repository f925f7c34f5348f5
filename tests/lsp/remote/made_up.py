"""A made-up server on loopback: what it answers is given for each path, and what it was asked is kept."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from localdflash.server.address import Address

Json = dict[str, Any]
STREAM = "text/event-stream"


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


# How the kinds of server answer, by their sources and documentation.

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
CODER = "qwen2.5-coder"


def completions(
    *texts: str,
    models: Sequence[str] = (CODER,),
    markers: Sequence[str] = QWEN,
    suffix: str = "refused",
    template: str = "",
    logprob: float | None = None,
    listed: Mapping[str, Json] | None = None,
    any_model: bool = False,
) -> dict[str, Answer]:
    """A server whose streams are these texts. `markers` are single tokens; a `suffix` is counted, ignored or refused.

    `template` is put around a prompt without a suffix. With `any_model` the requested name does not matter.
    """

    def count(text: str) -> int:
        for marker in markers:
            text = text.replace(marker, "\0")
        return len(text)

    def logprobs(text: str, body: Json) -> Json | None:
        if logprob is None:
            return None
        if any_model:  # llama-server
            return {"content": [{"id": 1, "token": text, "logprob": logprob}]} if "n_probs" in body else None
        return {"tokens": [text], "token_logprobs": [logprob]} if "logprobs" in body else None

    def answer(body: Json) -> Said:
        if body["model"] not in models and not any_model:
            return Said({"error": {"message": f"The model `{body['model']}` does not exist"}}, 404)
        if suffix == "refused" and "suffix" in body:
            return Said({"error": {"message": "suffix is not currently supported"}}, 400)
        parts = [*texts, ""] if body.get("stream") else ["x"]
        choices = [{"index": 0, "text": one, "logprobs": logprobs(one, body) if one else None} for one in parts]
        choices[-1]["finish_reason"] = "stop" if body.get("stream") else "length"
        if body.get("stream"):
            return sse(*({"choices": [choice]} for choice in choices))
        after = body.get("suffix", "")
        counted = count(body["prompt"] + (after if suffix == "counted" else "")) + (0 if after else len(template))
        return Said({"choices": choices, "usage": {"prompt_tokens": counted}})

    known = {"data": [{"id": name, **(listed or {}).get(name, {})} for name in models]}
    return {"/v1/models": Said(known), "/v1/completions": answer}


def vllm(*texts: str, model: str = CODER, **more: Any) -> dict[str, Answer]:
    """vLLM, as SGLang: the suffix is refused."""
    return completions(*texts, models=(model,), listed={model: {"max_model_len": 8192}}, **more)


def llama(*texts: str, model: str = "/models/Qwen2.5-Coder-1.5B-Q8_0.gguf", **more: Any) -> dict[str, Answer]:
    """llama-server: one model, whatever name is requested."""
    return completions(*texts, models=(model,), listed={model: {"meta": {"n_ctx": 2048}}}, any_model=True, **more)


def ollama(*texts: str, inserts: Sequence[str] = (CODER,), models: Sequence[str] = ()) -> dict[str, Answer]:
    """Ollama: a template is around each prompt, and the suffix is refused unless a model's template has it."""
    known = completions(*texts, models=models or inserts, suffix="counted", template="You are a helpful assistant.")
    answer = known["/v1/completions"]

    def complete(body: Json) -> Said:
        if "suffix" in body and body["model"] not in inserts:
            return Said({"error": {"message": f"{body['model']} does not support insert"}}, 400)
        return answer(body) if callable(answer) else answer

    return {**known, "/v1/completions": complete}


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
