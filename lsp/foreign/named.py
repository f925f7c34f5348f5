"""The server that the settings name instead of this machine's own engine."""

from dataclasses import dataclass
from pathlib import Path

from localdflash.models.config import Config
from localdflash.server.address import Address
from localdflash.server.tcp import read_key


@dataclass(frozen=True)
class NamedEngine:
    """A server by its address. `key_file` holds the bearer key; `model` "": the first that fills in the middle."""

    url: str
    key_file: Path | None = None
    model: str = ""

    @classmethod
    def of(cls, config: Config, model: str = "") -> "NamedEngine | None":
        """The server that the settings name; None if they name none."""
        return cls(config.server.url, config.server.key_file, model) if config.server.url else None

    def address(self) -> Address:
        """Where it is; UsageError if its key cannot be read."""
        return Address.of_url(self.url, read_key(self.key_file) if self.key_file else "")
