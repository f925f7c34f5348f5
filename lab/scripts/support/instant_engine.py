"""Engine that answers /complete at once from known texts, to measure and test everything around a model.

`COMMAND FILE... [--delay MS]`: listens where the daemon would. If a file contains the text around the cursor, the
answer is the file's text at the cursor, up to the end of the line or, after the start of a block, up to the next empty
line. Any other request gets an empty answer. `--delay` is the time between two lines.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from localdflash import __version__
from localdflash.base.files import paths
from localdflash.server.sockets import listen_at, prepare_folder

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]
COMMAND = (sys.executable, "-P", __file__)
MATCHED_CHARS = 200  # characters on either side of the cursor that a file must contain
PAIR: dict[str, Any] = {"pair": "oracle", "roles": ["chat", "completion"], "options": {"pair": "oracle"}}
ABOUT = PAIR | {"pairs": [PAIR], "running": 0, "waiting": 0, "notice": None, "pid": 0}
END = {
    "text": "",
    "finish": "stop",
    "model": "oracle",
    "confidence": 0.9,
    "tokens": 9,
    "tau": 3.0,
    "timings": {"predicted_per_second": 1e3},
}


class Oracle:
    """Server of known texts. `live` and `max_live` count the answers in progress; `requests` holds the bodies."""

    def __init__(self, texts: list[str], delay: float = 0.0) -> None:
        self._texts, self._delay = texts, delay
        self.live = self.max_live = 0
        self.requests: list[dict[str, Any]] = []
        self._running: dict[str, asyncio.Task[None]] = {}

    def rest(self, before: str, after: str, mode: str) -> str:
        """Return the text between `before` and `after` in a known text that contains both."""
        for text in self._texts:
            begin = text.find(before[-MATCHED_CHARS:]) if before else 0
            start = begin + len(before[-MATCHED_CHARS:])
            end = text.find(after[:MATCHED_CHARS], start) if after else len(text)
            if min(begin, end) < 0:
                continue
            rest, line = text[start:end], before.rpartition("\n")[2].strip()
            first = rest.partition("\n")[0]
            several = mode == "lines" or (mode == "auto" and (not line or first.rstrip().endswith(("{", ":"))))
            return rest.partition("\n\n")[0] if several else first
        return ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        answering: asyncio.Task[None] | None = None
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = head.partition("content-length: ")[2].partition("\r")[0]
                body = await reader.readexactly(int(length or 0))
                target = head.split()[1]
                if target == "/complete":
                    answering = asyncio.create_task(self._complete(json.loads(body), writer))
                else:
                    respond(writer, self._about(target))
        if answering:
            answering.cancel()
        writer.close()

    def _about(self, target: str) -> Any:
        if target == "/health":
            return {"status": "ok"}
        if target == "/oracle":
            return {"live": self.live, "most": self.max_live, "asked": self.requests}
        return ABOUT | {"version": __version__}

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer POST /complete like the daemon: a newer request of a document cancels the older one."""
        self.requests.append(body)
        text = ""
        if body.get("max_tokens", 1):
            text = self.rest(body["prefix"] + body.get("middle", ""), body.get("suffix", ""), body.get("mode", "auto"))
        document, task = body.get("document", ""), asyncio.current_task()
        assert task
        if older := self._running.get(document):
            older.cancel()
        self._running[document] = task
        self.live += 1
        self.max_live = max(self.max_live, len(self._running))
        try:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for index in range(body.get("count", 1)):
                for number, line in enumerate(text.splitlines(keepends=True)):
                    if number and self._delay:
                        await asyncio.sleep(self._delay)
                    event = {"index": index, "text": line, "tokens": len(line.split()), "confidence": 0.9}
                    chunk(writer, f"data: {json.dumps(event)}\n\n")
                chunk(writer, f"data: {json.dumps({'index': index, **END})}\n\n")
            chunk(writer, "")
        finally:
            self.live -= 1
            if self._running.get(document) is task:
                del self._running[document]

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with serving(self.connected, paths.daemon_socket()) as server:
            await server.serve_forever()


@asynccontextmanager
async def serving(connected: Connected, path: Path) -> AsyncIterator[asyncio.Server]:
    """Serve where a daemon would listen, on the same transport, without a key."""
    prepare_folder(path)
    with listen_at(path) as own:
        async with await asyncio.start_server(connected, sock=own.listener, limit=1 << 26) as server:
            yield server


def respond(writer: asyncio.StreamWriter, value: Any, status: int = 200) -> None:
    """Write a complete JSON response."""
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status} .\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def chunk(writer: asyncio.StreamWriter, text: str) -> None:
    """Write a part of a chunked response; an empty part ends it."""
    data = text.encode()
    writer.write(b"%x\r\n%b\r\n" % (len(data), data))


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(Oracle([file.read_text("utf-8") for file in given.files], given.delay / 1e3).serve())


if __name__ == "__main__":
    main()
