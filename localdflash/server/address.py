"""The address of a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from localdflash.base.errors import UsageError


@dataclass(frozen=True)
class Address:
    """Address of a server, or the local path of an engine (see `sockets.located`); `place` is its name in messages."""

    socket: Path | None = None
    host: str = "localdflash"  # a Unix socket has none, but a request names one
    port: int = 80
    tls: bool = False
    base: str = ""  # what stands before every path
    key: str = ""
    place: str = "the engine"

    @classmethod
    def of_url(cls, url: str, key: str = "") -> Self:
        """Parse the URL of an OpenAI-compatible server, with or without `/v1`; raise UsageError if it is not HTTP."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        sendable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not sendable:
            raise UsageError(f"{url!r}: invalid server address (expected a URL such as http://127.0.0.1:8080)")
        tls = parts.scheme == "https"
        base = parts.path.rstrip("/").removesuffix("/v1")
        place = url.rstrip("/").removesuffix("/v1")
        return cls(None, parts.hostname, port or (443 if tls else 80), tls, base, key, place)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of every request."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        host = name if self.socket or self.port == (443 if self.tls else 80) else f"{name}:{self.port}"
        key = [("Authorization", f"Bearer {self.key}")] if self.key else []
        return [("Host", host), ("Content-Type", "application/json"), *key]
