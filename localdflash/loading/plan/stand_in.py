"""Stand-ins for files that are still on the hub: their headers, fetched by range, in sparse files of the full size.

The rest of a stand-in takes no disk and is never read: enough to plan a pair before it is downloaded.
"""

from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.models.registry import hub, packages
from localdflash.models.registry.hub import Unreachable
from localdflash.models.registry.pair_entry import DrafterSource, FileSource
from localdflash.models.registry.remote_head import read_head
from localdflash.models.shapes.dflash_file import LARGEST_JSON


def stand_in(source: FileSource, folder: Path) -> Path:
    """A file in `folder` with the header of a GGUF on the hub, and its size; a package's file if that is installed.

    Of a model in parts the first of such files.

    Unreachable if the hub cannot be asked, ModelError if it has no such file or no sound header.
    """
    if source.adapted:
        raise Unreachable(f"{source.name} is made on this machine: pull it first")
    if source.package:
        if found := packages.installed(source.package, source.file):
            return found
        raise Unreachable(f"{source.name} is not here, and pip fetches packages whole: pull it first")
    for part in source.parts:
        remote, head, _ = read_head(part)
        with (folder / part.path.name).open("wb") as stream:
            stream.write(head.fetched)
            stream.truncate(remote.size)
    return folder / source.path.name


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
