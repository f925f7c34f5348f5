"""Address of a server: socket or host and port, with key and path prefix."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from localdflash.base.errors import UsageError


@dataclass(frozen=True)
class Address:
    """Address of a server: `host` and `port`, or `socket`: path of a Unix socket or port file (`server/sockets`)."""

    socket: Path | None = None
    host: str = "localdflash"  # for the Host header; a daemon on a Unix socket accepts any name
    port: int = 80
    tls: bool = False
    path_prefix: str = ""  # put before the path of every request
    key: str = ""  # bearer key; "": none
    display_name: str = "the daemon"  # for messages

    @classmethod
    def of_url(cls, url: str, key: str = "") -> Self:
        """Parse the URL of an OpenAI-compatible server, with or without `/v1`; raise UsageError if it is not HTTP."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_sendable = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_sendable:
            raise UsageError(f"{url!r}: invalid server address (expected a URL such as http://127.0.0.1:8080)")
        tls = parts.scheme == "https"
        path_prefix = parts.path.rstrip("/").removesuffix("/v1")
        display_name = url.rstrip("/").removesuffix("/v1")
        return cls(None, parts.hostname, port or (443 if tls else 80), tls, path_prefix, key, display_name)

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Return the headers of every request."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        host = name if self.socket or self.port == (443 if self.tls else 80) else f"{name}:{self.port}"
        key = [("Authorization", f"Bearer {self.key}")] if self.key else []
        return [("Host", host), ("Content-Type", "application/json"), *key]
