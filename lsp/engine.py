"""The daemon as the language server asks it: one completion at a time, on the event loop, cancelled with its task.

The daemon is started when it is missing and found again when it went away. What goes wrong is said once, by `say`, and
not for every key: completions are then empty, and a new try waits `PATIENCE` seconds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

import httpx2

from localdflash import paths
from localdflash.errors import LocaldflashError
from localdflash.server.spawn import Wanted, connect

PATIENCE = 5.0  # seconds


class Engine:
    """Connects on the first request. `say` gets lines for the user."""

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self._wanted, self._say = wanted, say
        self._http: httpx2.AsyncClient | None = None
        self._connecting = asyncio.Lock()
        self._not_before = 0.0
        self._told = ""

    async def infill(self, body: Mapping[str, object]) -> str:
        """The text of one completion; empty where there is none, or no engine."""
        for _ in range(2):  # a daemon that left since the last request is started again
            http = await self._connected()
            if http is None:
                return ""
            try:
                response = await http.post("/infill", json=dict(body))
            except httpx2.TransportError:
                await self.close()
                continue
            if response.is_success:
                return str(response.json()["content"])
            self._tell(str(response.json()["error"]["message"]))
            return ""
        return ""

    async def close(self) -> None:
        """Close the connection."""
        http, self._http = self._http, None
        if http:
            await http.aclose()

    async def _connected(self) -> httpx2.AsyncClient | None:
        async with self._connecting:
            if self._http or time.monotonic() < self._not_before:
                return self._http
            loop = asyncio.get_running_loop()

            def say(line: str) -> None:
                loop.call_soon_threadsafe(self._say, line)

            try:
                (await asyncio.to_thread(connect, self._wanted, say)).close()
                transport = httpx2.AsyncHTTPTransport(uds=str(paths.engine_socket()), verify=False, trust_env=False)
            except LocaldflashError as error:
                self._not_before = time.monotonic() + PATIENCE
                self._tell(str(error))
                return None
            self._told = ""
            self._http = httpx2.AsyncClient(transport=transport, base_url="http://localdflash", timeout=None)
            return self._http

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._say(line)
