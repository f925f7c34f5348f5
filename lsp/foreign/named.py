"""The remote server of the settings."""

from dataclasses import dataclass
from pathlib import Path

from localdflash.models.config import Config
from localdflash.server.address import Address
from localdflash.server.tcp import read_key


@dataclass(frozen=True)
class RemoteServer:
    """A server by its address. `key_file` holds the bearer key; `model` "" is the first that can infill."""

    url: str
    key_file: Path | None = None
    model: str = ""

    @classmethod
    def of(cls, config: Config, model: str = "") -> "RemoteServer | None":
        """Return the server of the settings; None if there is none."""
        return cls(config.server.url, config.server.key_file, model) if config.server.url else None

    def address(self) -> Address:
        """Return the address; UsageError if its key cannot be read."""
        return Address.of_url(self.url, read_key(self.key_file) if self.key_file else "")
