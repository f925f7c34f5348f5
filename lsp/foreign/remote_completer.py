"""The server that `[server] url` names, as the language server uses it: see `Asker`."""

from collections.abc import Callable
from urllib.parse import urlsplit

from localdflash.lsp.engine_completer import PATIENCE, Asker, Source
from localdflash.lsp.foreign.finding import find
from localdflash.lsp.foreign.named import NamedEngine
from localdflash.models.config import is_loopback


class ForeignCompleter(Asker):
    """Asks such a server. Text leaves this machine only for the address that the user's own settings name."""

    refused_patience = PATIENCE  # finding out again what it can do takes it some requests

    def __init__(self, engine: NamedEngine, say: Callable[[str], None], tell: Callable[[str], None]) -> None:
        super().__init__(say, tell)
        self._engine = engine
        self.gone = f"{engine.url} ended before its answer did"

    async def find(self) -> Source:
        """See `Asker`."""
        address = self._engine.address()
        source = await find(address, self._engine.model)
        sent = "" if is_loopback(address.host) else ": the code around the cursor is sent there"
        self._say(f"suggestions come from {source.model} at {address.place}{sent}")
        return source

    async def model(self) -> str:
        """See `Asker`: with the server, as it is not this machine's own engine."""
        source = await self._connected()
        return f"{source.model} at {urlsplit(self._engine.url).netloc}" if source else ""
