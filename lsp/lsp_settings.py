"""Settings that a client sends in `initializationOptions`, and the remote server that the user's settings name."""

from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any

from localdflash.models.config import Config
from localdflash.server.address import Address
from localdflash.server.tcp import read_key

MIN_DEADLINE_MS, MAX_DEADLINE_MS = 50, 10_000


@dataclass(frozen=True)
class LspSettings:
    """Options of a client. `deadline_ms`: after this time, the part of an answer that has arrived is returned."""

    pushes_updates: bool = False  # `localdflash/didUpdateInlineCompletion` is sent
    sends_status: bool = False  # `didChangeStatus` is sent
    deadline_ms: int = 350
    sends_next_edits: bool = False  # `localdflash/didUpdateNextEdit` is sent

    @classmethod
    def of(cls, options: Any) -> "tuple[LspSettings, list[str]]":
        """Return the settings, and a line for each invalid option, which keeps its default."""
        given = options if isinstance(options, dict) else getattr(options, "__dict__", None) or {}
        wrong: list[str] = []

        def read_option(name: str, kind: type | UnionType, expected: str, default: Any) -> Any:
            value = given.get(name, default)
            if isinstance(value, kind) and isinstance(value, bool) == isinstance(default, bool):
                return value
            wrong.append(f"initializationOptions.{name}: expected {expected}, found {value!r}")
            return default

        switches = ("push", "status", "nextEdit")
        push, status, next_edit = (read_option(name, bool, "true or false", False) for name in switches)
        deadline = read_option("deadlineMs", int | float, "a number", cls.deadline_ms)
        deadline = round(min(max(MIN_DEADLINE_MS, deadline), MAX_DEADLINE_MS))
        return cls(push, status, deadline, next_edit), wrong


@dataclass(frozen=True)
class RemoteServer:
    """Remote server. `key_file` holds the bearer key; `model`: "" is the first model that can infill."""

    url: str
    key_file: Path | None = None
    model: str = ""

    @classmethod
    def of(cls, config: Config, model: str = "") -> "RemoteServer | None":
        """Return the server of the settings; None if there is none."""
        return cls(config.server.url, config.server.key_path, model) if config.server.url else None

    def address(self) -> Address:
        """Return the address; UsageError if its key cannot be read."""
        return Address.of_url(self.url, read_key(self.key_file) if self.key_file else "")
