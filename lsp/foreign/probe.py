"""Questions that find out what a server is: every answer is an answer, whatever its status."""

import json
from collections.abc import Mapping
from typing import Any

from localdflash.base.errors import EngineGone, UsageError
from localdflash.server.address import Address
from localdflash.server.client import Connection
from localdflash.server.refusals import error_of

Json = dict[str, Any]
DENIED = (401, 403)


class Probe:
    """One connection for such questions. `denied`: an answer was that a key is wanted."""

    def __init__(self, address: Address) -> None:
        self.address, self.denied = address, False
        self._connection = Connection(address, bytes, tolerant=True)

    async def get(self, target: str) -> Json | None:
        """The JSON object there; None if there is none. EngineGone while the server loads its model."""
        status, content = await self._ask("GET", target)
        return content if status == 200 else None

    async def post(self, target: str, body: Mapping[str, object]) -> Json | None:
        """The same for a POST."""
        status, content = await self._ask("POST", target, body)
        return content if status == 200 else None

    async def post_with_key(self, target: str, body: Mapping[str, object]) -> Json | None:
        """The same, where no other kind of server can be meant: UsageError if a key is wanted."""
        status, content = await self._ask("POST", target, body)
        if status in DENIED:
            raise self.no_key()
        return content if status == 200 else None

    def no_key(self) -> UsageError:
        """The error that says what to do about the key."""
        if self.address.key:
            return UsageError(f"{self.address.place} refuses the key that [server] key_file names")
        return UsageError(f"{self.address.place} wants a key: put it into a file, and its path into [server] key_file")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _ask(self, method: str, target: str, body: Mapping[str, object] | None = None) -> tuple[int, Json | None]:
        status, data = await self._connection.answer(method, target, body)
        self.denied |= status in DENIED
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        content = content if isinstance(content, dict) else None
        if status == 503:
            raise EngineGone(f"{self.address.place} has no model ready: {error_of(content or {}, status)}")
        return status, content


def items(content: Json | None, name: str) -> list[Json]:
    """The objects in a list of an answer; none if it is not one."""
    found = (content or {}).get(name)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
