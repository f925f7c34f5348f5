"""A server of a test where an engine would listen, by whichever transport that has; it asks for no key."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from localdflash.server.sockets import local, prepare_folder

Connected = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


@asynccontextmanager
async def serving(connected: Connected, path: Path) -> AsyncIterator[asyncio.Server]:
    """Answer those who find the path."""
    prepare_folder(path)
    with local(path) as own:
        async with await asyncio.start_server(connected, sock=own.listener, limit=1 << 26) as server:
            yield server
