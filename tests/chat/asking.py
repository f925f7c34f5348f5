"""Helpers for tests that ask an engine: answers as objects, and a scripted server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localdflash.chat.answerer import Answerer, AnswerPiece, AnswerRestart, Done
from localdflash.chat.messages import Message
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server.address import Address

GREEDY = ChatSettings(max_tokens=48)
QUESTION = (Message("user", "Write a function that adds two numbers."),)
ABOUT = {"pair": "scripted", "context": 1000, "backend": "llama.cpp", "device": "cpu", "drafter": True, "memory": {}}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class FixedSource:
    """Source of a running server; `opened` counts the calls of `open`."""

    can_restart = True

    def __init__(self, path: Path) -> None:
        self.path, self.opened, self.pair = path, 0, ""

    async def open(self, say: Callable[[str], None], on_stage: Callable[[str], None]) -> Address:
        self.opened += 1
        return Address(self.path)

    def remember_pair(self, pair: str) -> None:
        self.pair = pair

    async def close(self) -> None:
        pass


@asynccontextmanager
async def open_answerer(source: Any, say: Callable[[str], None] = lambda _: None) -> AsyncIterator[Answerer]:
    answerer = Answerer(source, say)
    try:
        yield answerer
    finally:
        await answerer.close()
        await asyncio.sleep(0)  # lets closed connections go


@dataclass
class Answer:
    """Events of an answer, in order."""

    events: list[AnswerPiece | AnswerRestart | Done] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the text at the end, after all restarts."""
        text = ""
        for event in self.events:
            match event:
                case AnswerPiece():
                    text += event.text
                case AnswerRestart():
                    text = ""
        return text

    @property
    def done(self) -> Done:
        (done,) = [event for event in self.events if isinstance(event, Done)]
        assert self.events[-1] is done
        return done


async def ask(
    answerer: Answerer, messages: Sequence[Message] = QUESTION, settings: ChatSettings = GREEDY, **more: Any
) -> Answer:
    return Answer([event async for event in answerer.answer(messages, settings, **more)])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(**fields: Any) -> bytes:
    return chunk(f"data: {json.dumps({'model': 'scripted', **fields})}\n\n".encode())


def text(content: str, step: dict[str, Any] | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}}], **({"step": step} if step else {}))


def finish(reason: str = "stop") -> bytes:
    return event(choices=[{"index": 0, "delta": {}, "finish_reason": reason}]) + chunk(b"data: [DONE]\n\n") + END


def answer(*texts: str) -> bytes:
    return HEAD + b"".join(map(text, texts)) + finish()


def response(status: int, body: Any) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(data), data)


class ScriptedServer:
    """Server that sends one of `answers` per chat request, in parts, and closes the connection; see `requests`.

    It waits for a part that is an event. `models` is the reply of /v1/models, `status` that of /ps.
    """

    def __init__(self, *answers: bytes | Sequence[bytes | asyncio.Event], models: Any = None) -> None:
        self.answers, self.models, self.status = list(answers), models, dict(ABOUT)
        self.requests: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.others: list[tuple[str, dict[str, Any]]] = []
        self.client_left = asyncio.Event()  # a client closed the connection early

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self._serve(reader, writer)
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            length = head.lower().partition("content-length: ")[2].partition("\r")[0]
            body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
            target = head.split()[1]
            if target.endswith(("/chat/completions", "/complete")):
                self.requests.append(body)
                await self._send(self.answers.pop(0) if self.answers else b"", reader, writer)
                return
            self.others.append((target, body))
            reply = self._reply(target)
            writer.write(response(404, {}) if reply is None else response(200, reply))

    def _reply(self, target: str) -> Any:
        pairs = [{**self.status, "options": {"pair": self.status.get("pair")}}]
        return {
            "/ps?role=chat": {**self.status, "pairs": pairs},
            "/v1/models": self.models,
            "/load": ABOUT | {"pair": "other"},
        }.get(target)

    async def _send(
        self, parts: bytes | Sequence[bytes | asyncio.Event], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        disconnected = asyncio.create_task(reader.read())
        for part in [parts] if isinstance(parts, bytes) else parts:
            if isinstance(part, asyncio.Event):
                waiting = asyncio.create_task(part.wait())
                await asyncio.wait((waiting, disconnected), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if disconnected.done():
                    self.client_left.set()
                    return
            else:
                writer.write(part)
                await writer.drain()
        disconnected.cancel()


@asynccontextmanager
async def serve_script(script: ScriptedServer, path: Path) -> AsyncIterator[FixedSource]:
    """Serve the script on a Unix socket."""
    async with await asyncio.start_unix_server(script.handle, path):
        yield FixedSource(path)
