"""Reads the header of a GGUF file on the hub with range requests."""

import io
from pathlib import Path

from localdflash.models.registry import hub
from localdflash.models.registry.hub import Remote
from localdflash.models.registry.pair_entry import FileSource
from localdflash.models.weights.gguf import GGUFHeader, parse_header

CHUNK = 4 << 20  # bytes fetched at a time; the header of a large vocabulary takes two or three


class FileHead(io.RawIOBase):
    """Read-only stream over the beginning of a hub file; fetched bytes are kept in `fetched`."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote, self.fetched = remote, bytearray()

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the io module's own buffers only
        """See io.RawIOBase."""
        data = hub.read_range(self._remote, len(self.fetched), len(buffer)) if self._remaining_bytes() else b""
        buffer[: len(data)] = data
        self.fetched += data
        return len(data)

    def _remaining_bytes(self) -> int:
        return self._remote.size - len(self.fetched)


def read_head(source: FileSource) -> tuple[Remote, FileHead, GGUFHeader]:
    """Return the metadata, the fetched bytes and the parsed header of a hub file."""
    assert source.repository
    remote = hub.look_up(source.repository, source.file, source.revision)
    head = FileHead(remote)
    return remote, head, parse_header(io.BufferedReader(head, CHUNK), remote.size, Path(source.name))
