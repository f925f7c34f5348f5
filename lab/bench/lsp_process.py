"""Language server process and JSON-RPC to it; shares no code with the server that it measures.

Requests of the server get `null`, its notifications go to `heard`. When it ends, every open request fails.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from localdflash.base.errors import EngineDisconnect
from localdflash.text.sanitize import printable

Json = dict[str, Any]
RpcAnswer = Callable[[Any, Json | None], None]  # result, error

LARGEST = 1 << 26  # bytes of one message
ENDS = 10.0  # seconds that a server may take to leave


class LanguageServer:
    """One server over stdio; `await LanguageServer.start(...)`."""

    def __init__(self, process: asyncio.subprocess.Process, heard: Callable[[str, Any], None]) -> None:
        self._process, self._heard = process, heard
        self._open: dict[int, RpcAnswer] = {}
        self._number = 0
        self._said: deque[str] = deque(maxlen=1)
        self._gone = ""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._listen())]

    @classmethod
    async def start(cls, command: Sequence[str], folder: str, heard: Callable[[str, Any], None]) -> "LanguageServer":
        """Start the process in a folder."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, limit=LARGEST
        )
        return cls(process, heard)

    def request(self, method: str, params: Any, answer: RpcAnswer) -> int:
        """Send a request; return its number, by which it can be cancelled."""
        self._number += 1
        self._open[self._number] = answer
        self._send({"id": self._number, "method": method, "params": params})
        return self._number

    async def ask(self, method: str, params: Any) -> Any:
        """Send a request and wait for the answer; EngineDisconnect if the server refuses."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(result: Any, error: Json | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(EngineDisconnect(f"{method}: {printable(str(error.get('message')))}"))

        self.request(method, params, answer)
        return await future

    def notify(self, method: str, params: Any) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def cancel(self, number: int) -> None:
        """Cancel a request, if it is still open."""
        if number in self._open:
            self.notify("$/cancelRequest", {"id": number})

    def check(self) -> None:
        """Raise EngineDisconnect if the server has ended."""
        if self._gone:
            raise EngineDisconnect(self._gone)

    async def stop(self) -> None:
        """Shut the server down, and kill it if that does not help."""
        try:
            async with asyncio.timeout(ENDS):
                if not self._gone:
                    await self.ask("shutdown", None)
                    self.notify("exit", None)
                await self._process.wait()
        except (TimeoutError, EngineDisconnect):
            self._kill()
        finally:
            self._kill()
            await self._process.wait()
            await asyncio.gather(*self._tasks)

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _send(self, message: Json) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async def _read(self) -> None:
        assert self._process.stdout is not None
        reason = ""
        try:
            while True:
                self._take(json.loads(await _body(self._process.stdout)))
        except asyncio.IncompleteReadError:
            await self._process.wait()
        except (ValueError, asyncio.LimitOverrunError, RecursionError) as error:
            reason = f"what it sends is no LSP: {error}"
            self._kill()
        await self._tasks[1]
        self._gone = "the language server ended: " + printable(reason or "".join(self._said) or "it says not why")
        while self._open:
            self._open.popitem()[1](None, {"code": 0, "message": self._gone})

    def _take(self, message: Json) -> None:
        if "method" not in message:
            if answer := self._open.pop(message.get("id") or 0, None):
                answer(message.get("result"), message.get("error"))
        elif "id" in message:
            self._send({"id": message["id"], "result": None})
        else:
            self._heard(message["method"], message.get("params"))

    async def _listen(self) -> None:
        """Keep the last line of stderr."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if text := line.decode("utf-8", "replace").strip():
                self._said.append(text)


async def _body(stream: asyncio.StreamReader) -> bytes:
    header = await stream.readuntil(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in header.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    length = int(lengths[0]) if lengths else -1
    if not 0 <= length <= LARGEST:
        raise ValueError(f"a message of {length} bytes")
    return await stream.readexactly(length)
