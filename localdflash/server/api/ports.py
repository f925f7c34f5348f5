"""POST /listen: a port of a running engine, open for as long as the client of this request stays.

So it closes by itself however that client ends, and its request ends when the engine leaves. An engine that somebody
holds a port of does not leave for being idle.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.base.files import paths
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.request_body import read
from localdflash.server.api.schemas import ListenRequest
from localdflash.server.api.streams import DONE, EventStream, event
from localdflash.server.key import own_key
from localdflash.server.tcp import Tcp


async def listen(http: HttpRequest) -> Response:
    """Open a port; the one event tells its address. UsageError if it is taken."""
    state: AppState = http.app.state.shared
    body = await read(http, ListenRequest)
    if state.listen is None:
        raise ApiError(404, "this server opens no ports", code="not_found")
    path = paths.key_file()
    return EventStream(_events(state.listen(Tcp(body.host, body.port, own_key(path), body.hosts, path))))


async def _events(port: AsyncGenerator[str]) -> AsyncGenerator[bytes]:
    async with aclosing(port) as addresses:
        async for url in addresses:
            yield event({"url": url})
    yield DONE
