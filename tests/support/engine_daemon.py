"""Engines with their HTTP app in the test's process, and a client of both."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx2

from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
PLACE = {"path": "a.py", "prefix": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 4, "stream": False}
LONG = {**HELLO, "max_tokens": 900, "temperature": 2.0, "grammar": "root ::= " + "[a-z] " * 2000}
LOADED = "localdflash.server.worker.LoadedPair"


class Daemon:
    """Client of engines and their app in this process."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines
        self.http = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(create_app(engines)), base_url="http://localhost", timeout=60
        )

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).json()

    async def post(self, path: str, body: Any) -> httpx2.Response:
        return await self.http.post(path, json=body)

    async def load(self, pair: str, role: str = "", **more: Any) -> httpx2.Response:
        return await self.post("/load", {"pair": pair, **({"role": role} if role else {}), **more})

    async def answered_by(self, path: str, body: Any) -> str:
        """Return the pair that answers a request, or the error code."""
        told = (await self.post(path, body)).json()
        return str(told["error"]["code"] if "error" in told else told["model"])

    async def pairs(self) -> dict[str, list[str]]:
        """Return the roles of each pair that /ps lists."""
        return {one["pair"]: one["roles"] for one in (await self.get("/ps"))["pairs"]}

    @asynccontextmanager
    async def answering(self, pair: str) -> AsyncIterator["asyncio.Task[httpx2.Response]"]:
        """Start a long answer of a pair; its client disconnects at the end."""
        task = asyncio.create_task(self.post(CHAT, {**LONG, "model": pair}))
        while not any(one.running and one.running.request.stats.steps for one in self._schedulers()):
            assert not task.done(), task.result().text
            await asyncio.sleep(0.005)
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            while any(one.running for one in self._schedulers()):
                await asyncio.sleep(0.005)

    async def until_somebody_waits(self) -> None:
        """Wait until a load waits for the requests of a pair that has to go."""
        while not self.engines._evicting:
            await asyncio.sleep(0.005)

    def _schedulers(self) -> list[Any]:
        return [worker.scheduler for worker in self.engines.workers if worker.scheduler]
