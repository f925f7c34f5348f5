"""A TCP port of the daemon: which one, and who may use it."""

import shlex
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tcp:
    """Where to listen besides the Unix socket. `hosts`: names that a request's Host header may have."""

    host: str
    port: int  # 0: any that is free
    key: str
    hosts: Collection[str]
    key_file: Path  # for the user to see

    def asked(self) -> dict[str, object]:
        """The body of /listen, where the engine knows the key itself."""
        return {"host": self.host, "port": self.port, "hosts": sorted(self.hosts)}

    def told(self, url: str) -> str:
        """How to ask at this port, whose address is `url`, for the user."""
        key = f'-H "Authorization: Bearer $(cat {shlex.quote(str(self.key_file))})"'
        return f"listening on {url}: curl {key} {url}/v1/models"
