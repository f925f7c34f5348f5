"""Access checks for TCP listeners, which any process, and any web page in a browser, can reach.

The Host header must name this machine, which prevents DNS rebinding; its port may differ, as with port forwarding. A
request with an Origin header comes from a web page and is refused. Then the API key must match. Loading any file,
stopping and opening ports are allowed only on the local listener. After a refusal, the connection stays open for a
while and the rest of the request is discarded, so that a client that first sends its whole body sees the refusal.
"""

import hmac
import re
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from localdflash.server.api.http_responses import ApiError, error_response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
WITHOUT_KEY = frozenset({"/health", "/v1/health"})
LOCAL_ONLY = frozenset({"/load", "/stop", "/listen"})

_HOST = re.compile(rb"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/]+)(?::([0-9]{1,5}))?")


class Guard:
    """ASGI middleware of a TCP listener. `is_local` (port file): every path is allowed, and every path needs a key."""

    def __init__(self, app: ASGIApp, *, key: str, hosts: Collection[str] = LOOPBACK, is_local: bool = False) -> None:
        if not key:
            raise ValueError("Guard needs a key")
        self._app, self._key, self._is_local = app, key.encode(), is_local
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # no WebSocket is served
            await send({"type": "websocket.close", "code": 1008})
            return
        if refusal := self._refusal(scope):
            await error_response(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_our_host(hosts[0]):
            return ApiError(421, "Host: not a name of this server", code="host_not_allowed")
        if any(name == b"origin" for name, _ in headers):
            return ApiError(403, "Origin: web pages may not use this server", code="origin_not_allowed")
        path = scope["path"]
        if path in WITHOUT_KEY and not self._is_local:
            return None
        if not any(hmac.compare_digest(key.strip(), self._key) for key in _keys(headers)):
            return ApiError(
                401,
                "Authorization: expected `Bearer KEY` with this server's key, or that key in x-api-key",
                code="invalid_api_key",
                WWW_Authenticate="Bearer",
            )
        if path in LOCAL_ONLY and not self._is_local:
            return ApiError(403, f"{path} is served on the Unix socket only", code="unix_socket_only")
        return None

    def _is_our_host(self, host: bytes) -> bool:
        match = _HOST.fullmatch(host)
        if not match or (match[2] and not 0 < int(match[2]) < 1 << 16):
            return False
        return match[1].decode("latin-1").lower() in self._hosts


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the keys in both headers (a client may send another server's key in one); ignore a repeated header."""
    bearers = [value for name, value in headers if name == b"authorization"]
    keys = [value for name, value in headers if name == b"x-api-key"]
    if len(bearers) == 1:
        scheme, _, key = bearers[0].partition(b" ")
        bearers = [key] if scheme.lower() == b"bearer" else []
    return [key for given in (bearers, keys) if len(given) == 1 for key in given]
