"""An engine that knows what comes: /complete answers from texts at once, to measure and test everything around a model.

`python -P tests/instant_engine.py FILE... [--delay MS]`: listens where the daemon would, under the
LOCALDFLASH_HOME it is given. A request whose text before the cursor begins one of the files gets what follows there:
to the end of the line, or after a line that opens a block (and on an empty one) to the next empty line. Between two
lines it waits `--delay` milliseconds. Any other request gets an empty answer.
"""

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from localdflash import paths
from localdflash.server.sockets import prepare_folder


class Oracle:
    """What would be typed next. `live` and `most` count answers under way; `asked` are the bodies of all requests."""

    def __init__(self, texts: list[str], delay: float = 0.0) -> None:
        self._texts, self._delay = texts, delay
        self.live = self.most = 0
        self.asked: list[dict[str, Any]] = []

    def rest(self, before: str, after: str, mode: str) -> str:
        """What stands between the two in a text that has both."""
        for text in self._texts:
            if text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text):
                rest = text[len(before) : len(text) - len(after)]
                line = before.rpartition("\n")[2].strip()
                first = rest.partition("\n")[0]
                several = mode == "lines" or (mode == "auto" and (not line or first.rstrip().endswith(("{", ":"))))
                return rest.partition("\n\n")[0] if several else first
        return ""

    async def complete(self, http: Request) -> Response:
        """POST /complete, as the daemon has it."""
        body = await http.json()
        self.asked.append(body)
        text = ""
        if body.get("max_tokens", 1):
            text = self.rest(body["prefix"] + body.get("middle", ""), body.get("suffix", ""), body.get("mode", "auto"))
        return StreamingResponse(self._events(text, body.get("count", 1)), media_type="text/event-stream")

    async def _events(self, text: str, count: int) -> AsyncIterator[str]:
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            for index in range(count):
                for number, line in enumerate(text.splitlines(keepends=True)):
                    if number and self._delay:
                        await asyncio.sleep(self._delay)
                    event = {"index": index, "text": line, "tokens": len(line.split()), "confidence": 0.9}
                    yield f"data: {json.dumps(event)}\n\n"
                end = {"index": index, "text": "", "finish": "stop", "confidence": 0.9, "timings": {}}
                yield f"data: {json.dumps(end)}\n\n"
        finally:
            self.live -= 1

    def app(self) -> Starlette:
        """The part of the daemon that an editor's server asks for."""
        about = {
            "pair": "oracle",
            "version": version("localdflash"),
            "running": 0,
            "waiting": 0,
            "options": {},
            "notice": None,
            "pid": 0,
        }
        return Starlette(
            routes=[
                Route("/health", lambda _: JSONResponse({"status": "ok"})),
                Route("/ps", lambda _: JSONResponse(about)),
                Route("/oracle", lambda _: JSONResponse({"live": self.live, "most": self.most, "asked": self.asked})),
                Route("/complete", self.complete, methods=["POST"]),
            ]
        )

    async def serve(self) -> None:
        """Answer until cancelled."""
        path = paths.engine_socket()
        prepare_folder(path)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(128)
            config = uvicorn.Config(self.app(), log_level="warning", lifespan="off", http="h11")
            await uvicorn.Server(config).serve([listener])


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    given = parser.parse_args()
    asyncio.run(Oracle([file.read_text("utf-8") for file in given.files], given.delay / 1e3).serve())


if __name__ == "__main__":
    main()
