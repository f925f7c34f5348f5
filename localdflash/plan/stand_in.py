"""Stand-ins for files that are still on the hub: their headers, fetched by range, in sparse files of the full size.

The rest of a stand-in takes no disk and is never read: enough to plan a pair before it is downloaded.
"""

import io
from pathlib import Path

from localdflash.errors import ModelError
from localdflash.model.dflash_file import LARGEST_JSON
from localdflash.pairs import hub, packages
from localdflash.pairs.hub import Remote, Unreachable
from localdflash.pairs.pair import DrafterSource, FileSource
from localdflash.weights.gguf import parse_header

CHUNK = 4 << 20  # bytes fetched at a time: the header of a large vocabulary takes two or three


class FileHead(io.RawIOBase):
    """The first bytes of a file of the hub, fetched as far as they are read, and kept in `fetched`."""

    def __init__(self, remote: Remote) -> None:
        super().__init__()
        self._remote, self.fetched = remote, bytearray()

    def readable(self) -> bool:
        """See io.RawIOBase."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the io module's own buffers only
        """See io.RawIOBase."""
        data = hub.read_range(self._remote, len(self.fetched), len(buffer)) if self._left() else b""
        buffer[: len(data)] = data
        self.fetched += data
        return len(data)

    def _left(self) -> int:
        return self._remote.size - len(self.fetched)


def stand_in(source: FileSource, folder: Path) -> Path:
    """A file in `folder` with the header of a GGUF on the hub, and its size; a package's file if that is installed.

    Unreachable if the hub cannot be asked, ModelError if it has no such file or no sound header.
    """
    if source.adapted:
        raise Unreachable(f"{source.name} is made on this machine: pull it first")
    if source.package:
        if found := packages.installed(source.package, source.file):
            return found
        raise Unreachable(f"{source.name} is not here, and pip fetches packages whole: pull it first")
    assert source.repository
    remote = hub.look_up(source.repository, source.file, source.revision)
    head = FileHead(remote)
    parse_header(io.BufferedReader(head, CHUNK), remote.size, Path(source.name))
    path = folder / source.path.name
    with path.open("wb") as stream:
        stream.write(head.fetched)
        stream.truncate(remote.size)
    return path


def drafter_stand_in(source: DrafterSource, folder: Path) -> Path:
    """The same for a drafter; of safetensors only the config.json beside it, which gives the shapes."""
    if source.config is None:
        return stand_in(source, folder)
    assert source.config.repository
    remote = hub.look_up(source.config.repository, source.config.file, source.config.revision)
    if remote.size > LARGEST_JSON:
        raise ModelError(f"{remote.name}: larger than {LARGEST_JSON >> 20} MiB: not a drafter's configuration")
    (folder / "config.json").write_bytes(hub.read_range(remote, 0, remote.size))
    return folder / source.path.name
