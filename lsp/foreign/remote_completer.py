"""The remote server of `[server] url`, as a `CompletionClient`."""

from collections.abc import Callable
from urllib.parse import urlsplit

from localdflash.lsp.engine_completer import RETRY_SECONDS, CompletionClient, CompletionSource
from localdflash.lsp.foreign.finding import find_server
from localdflash.lsp.foreign.named import RemoteServer
from localdflash.models.config import is_loopback


class RemoteCompleter(CompletionClient):
    """Uses a remote server. Text leaves this machine only for the address in the user's own settings."""

    refused_patience = RETRY_SECONDS  # finding out again what it can do takes it some requests

    def __init__(self, engine: RemoteServer, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        super().__init__(say, tell)
        self._engine = engine
        self.gone = f"{engine.url} ended before its answer did"

    async def find(self) -> CompletionSource:
        """See `CompletionClient`."""
        address = self._engine.address()
        source = await find_server(address, self._engine.model)
        sent = "" if is_loopback(address.host) else ": the code around the cursor is sent there"
        self._say(f"suggestions come from {source.model} at {address.place}{sent}")
        return source

    async def model(self) -> str:
        """See `CompletionClient`: with the server's address."""
        source = await self._connected()
        return f"{source.model} at {urlsplit(self._engine.url).netloc}" if source else ""
