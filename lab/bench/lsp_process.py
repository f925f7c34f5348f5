"""Start a language server and talk JSON-RPC to it, without the protocol code of the server that is measured.

Requests from the server are answered with `null`; notifications go to `on_notification`. When the server ends, every
open request fails.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from localdflash.base.errors import EngineDisconnect
from localdflash.text.sanitize import printable

Json = dict[str, Any]
RpcCallback = Callable[[Any, Json | None], None]  # receives the result and the error of a request

MAX_MESSAGE_BYTES = 1 << 26
STOP_SECONDS = 10.0  # maximum wait until a server exits


class LanguageServer:
    """Language server process over stdio; create it with `start`."""

    def __init__(self, process: asyncio.subprocess.Process, on_notification: Callable[[str, Any], None]) -> None:
        self._process, self._on_notification = process, on_notification
        self._open: dict[int, RpcCallback] = {}  # callbacks of the open requests, by request number
        self._number = 0
        self._stderr_line: deque[str] = deque(maxlen=1)
        self._exit_reason = ""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_stderr())]

    @classmethod
    async def start(
        cls, command: Sequence[str], folder: str, on_notification: Callable[[str, Any], None]
    ) -> "LanguageServer":
        """Start the process in a folder."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, limit=MAX_MESSAGE_BYTES
        )
        return cls(process, on_notification)

    def request(self, method: str, params: Any, on_answer: RpcCallback) -> int:
        """Send a request whose answer goes to `on_answer`; return its number, by which it can be cancelled."""
        self._number += 1
        self._open[self._number] = on_answer
        self._send({"id": self._number, "method": method, "params": params})
        return self._number

    async def request_and_wait(self, method: str, params: Any) -> Any:
        """Send a request and return its result; EngineDisconnect if the server answers with an error or ends."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_answer(result: Any, error: Json | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(EngineDisconnect(f"{method}: {printable(str(error.get('message')))}"))

        self.request(method, params, on_answer)
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
        if self._exit_reason:
            raise EngineDisconnect(self._exit_reason)

    async def stop(self) -> None:
        """Shut the server down; kill it if it does not exit in time."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if not self._exit_reason:
                    await self.request_and_wait("shutdown", None)
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
                self._handle(json.loads(await _body(self._process.stdout)))
        except asyncio.IncompleteReadError:
            await self._process.wait()
        except (ValueError, asyncio.LimitOverrunError, RecursionError) as error:
            reason = f"invalid LSP message: {error}"
            self._kill()
        await self._tasks[1]
        self._exit_reason = "the language server ended: " + printable(
            reason or "".join(self._stderr_line) or "no output on stderr"
        )
        while self._open:
            self._open.popitem()[1](None, {"code": 0, "message": self._exit_reason})

    def _handle(self, message: Json) -> None:
        if "method" not in message:
            if on_answer := self._open.pop(message.get("id") or 0, None):
                on_answer(message.get("result"), message.get("error"))
        elif "id" in message:
            self._send({"id": message["id"], "result": None})
        else:
            self._on_notification(message["method"], message.get("params"))

    async def _read_stderr(self) -> None:
        """Keep the last line of stderr."""
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            if text := line.decode("utf-8", "replace").strip():
                self._stderr_line.append(text)


async def _body(stream: asyncio.StreamReader) -> bytes:
    header = await stream.readuntil(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in header.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    if not lengths:
        raise ValueError("no Content-Length header")
    if not 0 <= (length := int(lengths[0])) <= MAX_MESSAGE_BYTES:
        raise ValueError(f"expected a length of at most {MAX_MESSAGE_BYTES} bytes, got {length}")
    return await stream.readexactly(length)
