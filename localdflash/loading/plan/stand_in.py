"""Stand-ins for files that are still on the hub: sparse files of the full size with the downloaded header alone.

A pair can be planned with them before it is downloaded; they take no disk space.
"""

from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.models.registry import hub, packages
from localdflash.models.registry.hub import Unreachable
from localdflash.models.registry.pair_entry import DrafterSource, FileSource
from localdflash.models.registry.remote_head import read_head
from localdflash.models.shapes.dflash_file import LARGEST_JSON


def stand_in(source: FileSource, folder: Path) -> Path:
    """Create a stand-in for a GGUF in `folder` and return its path, for a model in parts that of the first part.

    A file of an installed package is returned itself. Unreachable if the hub cannot be reached. ModelError if the hub
    has no such file or its header is broken.
    """
    if source.adapted:
        raise Unreachable(f"{source.name}: made on this machine by `localdflash models pull`; pull it first")
    if source.package:
        if found := packages.installed(source.package, source.file):
            return found
        raise Unreachable(f"{source.name}: not here, and pip can only download the whole package; pull it first")
    for part in source.parts:
        remote, head, _ = read_head(part)
        with (folder / part.path.name).open("wb") as stream:
            stream.write(head.fetched)
            stream.truncate(remote.size)
    return folder / source.path.name


def drafter_stand_in(source: DrafterSource, folder: Path) -> Path:
    """Create a stand-in for a drafter; for safetensors its config.json alone, which has the shapes."""
    if source.config is None:
        return stand_in(source, folder)
    assert source.config.repository
    remote = hub.look_up(source.config.repository, source.config.file, source.config.revision)
    if remote.size > LARGEST_JSON:
        raise ModelError(f"{remote.name}: not a drafter's configuration (expected at most {LARGEST_JSON >> 20} MiB)")
    (folder / "config.json").write_bytes(hub.read_range(remote, 0, remote.size))
    return folder / source.path.name
