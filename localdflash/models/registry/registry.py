"""The registry of pairs: which target goes with which drafter, where the files come from, what runs them today.

Entries come from the `models.toml` that ships with the package and from the user's own in the configuration folder,
whose entries replace shipped ones whole. No other place is read, least of all the current folder: a repository must not
choose the files that are loaded.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from localdflash.base.errors import ModelError
from localdflash.base.files.paths import config_folder
from localdflash.base.files.strict_toml import did_you_mean
from localdflash.models.registry import hub, records
from localdflash.models.registry.base_model import find_drafter
from localdflash.models.registry.hub_names import (
    HUB,
    SAFETENSORS,
    ShortName,
    chosen,
    drafter_among,
    full_name,
    short_name,
)
from localdflash.models.registry.pair_entry import (
    DrafterMatch,
    DrafterSource,
    FileSource,
    LocalPair,
    PairEntry,
    TargetSource,
    models_folder,
)
from localdflash.models.registry.registry_file import read_pairs
from localdflash.models.registry.remote_head import read_head
from localdflash.models.shapes.drafter_kind import check_files, kind_of_file
from localdflash.models.weights.gguf import headers_kept, is_gguf, read_header
from localdflash.models.weights.split import files_of, first_of

MODELS_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Registry:
    """All pairs by id, in the order of the files."""

    pairs: dict[str, PairEntry]

    def pair(self, pair_id: str) -> PairEntry:
        """Return the entry with this id."""
        if pair_id in self.pairs:
            return self.pairs[pair_id]
        hint = did_you_mean(pair_id, self.pairs)
        raise ModelError(f"no pair {pair_id!r}{hint or '; see `localdflash models list`'}")

    def resolve(self, spec: str, drafter: str | None = None, ask: bool = False) -> PairEntry:
        """Find the pair that a user asks for: an id, the path of a .gguf target, or an hf: name (see `hub_names`).

        `drafter`, a path, a folder or such an hf: name of a .gguf or .safetensors, replaces what the registry has.
        With `ask` the hub may be asked which file a short name stands for, and what the header of one that is not here
        says.
        """
        pair = self._resolve(spec, ask)
        if drafter is not None:
            return replace(pair, drafter=self._given_drafter(drafter, ask))
        if pair.drafter or spec in self.pairs:
            return pair
        with headers_kept():
            return self._matched(pair, ask)

    def others_here(self) -> Iterator[PairEntry]:
        """Targets that were downloaded by an hf: name and belong to no entry."""
        known = {source.path for pair in self.pairs.values() for source in pair.sources}
        found = [
            self.resolve(f"{HUB}{path.relative_to(models_folder()).as_posix()}")
            for path in sorted(models_folder().glob("*/*/**/*.gguf"))
            if path not in known and path.name == first_of(path.name)
            if (record := records.read(path)) and record.of_hub
        ]
        known |= {pair.drafter.path for pair in found if pair.drafter}
        yield from (pair for pair in found if pair.target.path not in known)

    def _resolve(self, spec: str, ask: bool) -> PairEntry:
        if spec.startswith(HUB):
            asked = short_name(spec)
            return self._pair_on_hub(asked.file(self._file(asked, ask)) if asked else spec)
        if spec in self.pairs or not (spec.endswith(".gguf") or "/" in spec or "\\" in spec):
            return self.pair(spec)
        return _pair_at(Path(os.path.expanduser(spec)).absolute())

    def _pair_on_hub(self, spec: str) -> PairEntry:
        """The entry with this file; or what an entry says of another file of its repository; or only the target."""
        source = full_name(spec, ".gguf")
        target = TargetSource(source.repository, source.file, revision=source.revision)
        near = [pair for pair in self.pairs.values() if pair.target.repository == target.repository]
        same = next((pair for pair in near if pair.target.file == target.file), None)
        if same and target.revision in (None, same.target.revision):
            return same
        record = records.read(target.path)
        given = self._given_drafter(record.drafter, ask=False) if record and record.drafter else None
        if pair := same or next((pair for pair in near if pair.backends), None):
            description = f"{target.file}, as {pair.id} otherwise"
            return replace(
                pair, id=spec, description=description, target=target, drafter=given or pair.drafter, memory_gb=None
            )
        return PairEntry(
            spec, "a GGUF file of a Hugging Face repository", target, given, target.path, backends=("llama.cpp",)
        )

    def _file(self, asked: ShortName, ask: bool) -> str:
        """Return the file that a short name stands for: one that is here, else an entry's, else one of the hub's."""
        folder = models_folder() / asked.repository
        here = [
            path.relative_to(folder).as_posix()
            for path in folder.glob("**/*.gguf")
            if (record := records.read(path)) and asked.revision in (None, record.revision, record.asked)
        ]
        targets = [pair.target for pair in self.pairs.values() if pair.target.repository == asked.repository]
        named = [target.file for target in targets if asked.revision in (None, target.revision)]
        for files in (here, named):
            with suppress(ModelError):
                return chosen(asked, files)
        if ask:
            return chosen(asked, hub.listing(asked.repository, asked.revision))
        if here:
            return chosen(asked, here)
        spec = asked.file("").rstrip("/") + (f":{asked.quantization}" if asked.quantization else "")
        raise ModelError(f"{spec} is not here: run `localdflash models pull {spec}`")

    def _drafter_file(self, asked: ShortName, ask: bool) -> str:
        """Return the safetensors of a drafter's repository: those that are here, else an entry's, else the hub's."""
        drafters = [pair.drafter for pair in self.pairs.values() if pair.drafter]
        here = [path.name for path in (models_folder() / asked.repository).glob("*.safetensors")]
        named = [one.file for one in drafters if one.repository == asked.repository]
        found = drafter_among(here) or drafter_among(named)
        if ask and not found:
            found = drafter_among(hub.listing(asked.repository, asked.revision))
        return found or SAFETENSORS

    def _given_drafter(self, spec: str, ask: bool) -> DrafterSource:
        """Return the drafter at a path or an hf: name, with what an entry says of it."""
        if not spec.startswith(HUB):
            return _drafter_at(Path(os.path.expanduser(spec)).absolute())
        asked = short_name(spec)
        source = full_name(asked.file(self._drafter_file(asked, ask)) if asked else spec, ".gguf", ".safetensors")
        drafters = [pair.drafter for pair in self.pairs.values() if pair.drafter]
        known = next((one for one in drafters if (one.repository, one.file) == (source.repository, source.file)), None)
        if known:
            return replace(known, revision=source.revision, sha256=None, size=None)
        of_repository = (one.trained_for for one in drafters if one.repository == source.repository)
        return DrafterSource(
            source.repository, source.file, revision=source.revision, trained_for=next(of_repository, None)
        )

    def _matched(self, pair: PairEntry, ask: bool) -> PairEntry:
        """The pair with the drafter of an entry of the same model; one that is not here only if its target is not."""
        target = pair.target
        try:
            is_here = all(part.path.is_file() for part in target.parts)
            if not is_here and not (ask and target.repository):
                return pair
            header = read_header(target.path) if is_here else read_head(target)[2]
        except ModelError:  # loading says it better
            return pair
        called = target.repository.partition("/")[2] if target.repository else target.path.name
        match = find_drafter(header, called, self.pairs.values())
        drafter = match.drafter if match else None
        if not (match and drafter and is_here):
            return replace(pair, drafter=drafter, match=match)
        if not (file := _file_here(drafter)):
            return replace(pair, match=match)
        try:
            check_files(target.path, file)
        except ModelError as error:
            return replace(pair, match=DrafterMatch(None, f"{match.why}, but it does not fit: {error}"))
        return replace(pair, drafter=drafter, match=match)


def load_registry() -> Registry:
    """Read the shipped registry and the user's."""
    pairs = read_pairs(shipped_file(), MODELS_FOLDER)
    user = config_folder() / "models.toml"
    if user.is_symlink() or user.exists():
        pairs |= read_pairs(user, user.parent, pairs)
    return Registry(pairs)


def shipped_file() -> Path:
    """Return the path of models.toml: in an installed package, or next to the package in a source tree."""
    installed = MODELS_FOLDER.parent / "models.toml"
    return installed if installed.exists() else MODELS_FOLDER.parents[1] / "models.toml"


def missing_files(pair: PairEntry) -> tuple[FileSource, ...]:
    """List what is not on this machine. Either form of a drafter will do, under the same name in the same folder."""
    drafter = pair.drafter
    gguf = drafter and _forms(drafter)[0]
    wanted = pair.target.parts if gguf else pair.sources
    return tuple(source for source in wanted if not _here(source, drafter))


def how_to_get(source: FileSource) -> str:
    """Say where a missing file comes from and where it goes."""
    if source.adapted:
        return f"merge {source.adapted.base.name} with {source.adapted.adapter} into {source.path}"
    if source.fetched_from:
        return f"download {source.name} into {source.path.parent}"
    return f"no file at {source.path}: put it there, or correct the entry"


def local_files(pair: PairEntry) -> LocalPair:
    """Find the pair's files on this machine; ModelError says what is missing and how to get it.

    A file that was downloaded and has another size than the one that was verified is refused.
    """
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet; see `localdflash models show {pair.id}`")
    if missing := missing_files(pair):
        raise ModelError(_missing(pair, missing))
    gguf, safetensors = _forms(pair.drafter) if pair.drafter else (None, None)
    for first in filter(None, (pair.target.path, gguf, safetensors)):
        for path in files_of(first):
            records.check(path)
    return LocalPair(pair.id, pair.target.path, gguf, safetensors, pair.fim, pair.context, pair.sampling)


def _missing(pair: PairEntry, missing: tuple[FileSource, ...]) -> str:
    steps = "; ".join(how_to_get(source) for source in missing)
    pull = f": run `localdflash models pull {pair.id}`" if any(source.fetched_from for source in missing) else ""
    return f"files of {pair.id!r} are missing{pull} ({steps})" if pull else f"files of {pair.id!r} are missing: {steps}"


def _here(source: FileSource, drafter: DrafterSource | None) -> bool:
    return any(_forms(drafter)) if drafter and source is drafter else source.path.is_file()


def _forms(drafter: DrafterSource) -> tuple[Path | None, Path | None]:
    """Find the drafter as GGUF and as safetensors."""
    gguf, safetensors = drafter.path.with_suffix(".gguf"), drafter.path.with_suffix(".safetensors")
    return gguf if gguf.is_file() else None, safetensors if safetensors.is_file() else None


def _file_here(drafter: DrafterSource) -> Path | None:
    """Return the file of a drafter that is whole on this machine."""
    gguf, safetensors = _forms(drafter)
    beside = (*drafter.parts, drafter.config)
    return gguf or (safetensors if all(source.path.is_file() for source in beside if source) else None)


def _drafter_at(path: Path) -> DrafterSource:
    if path.is_dir():
        path /= drafter_among(file.name for file in path.iterdir()) or SAFETENSORS
    path = files_of(path)[0]
    if path.suffix not in (".gguf", ".safetensors") or not _is_file(path):
        raise ModelError(f"{path}: {_no(path, '.gguf or .safetensors')}; give a drafter's path, or hf:owner/name/file")
    return _source_at(path)


def _source_at(path: Path) -> DrafterSource:
    """Return the drafter of a file, with the kind that it says it is."""
    try:
        return DrafterSource(None, str(path), kind=kind_of_file(path))
    except ModelError:  # loading says it better
        return DrafterSource(None, str(path))


def _pair_at(target: Path) -> PairEntry:
    """Make a pair of a file and the one beside it that says `drafter` where its own name says `target`.

    A file that has no suffix, as Ollama's have none, is known by its first bytes; a part stands for its model.
    """
    target = files_of(target)[0]
    if not _is_file(target) or not (target.suffix == ".gguf" or is_gguf(target)):
        raise ModelError(f"{target}: {_no(target, '.gguf')}; give the path of a GGUF target, or an id")
    own = target.stem.partition("-00001-of-")[0]
    stem = own.replace("target", "drafter")
    siblings = (target.with_name(stem + end) for end in (".gguf", ".safetensors") if stem != own)
    drafter = next((path for path in siblings if path.is_file()), None)
    return PairEntry(
        id=str(target),
        description="a GGUF file",
        target=TargetSource(None, str(target)),
        drafter=_source_at(drafter) if drafter else None,
        origin=target,
        backends=("llama.cpp",),
    )


def _no(path: Path, wanted: str) -> str:
    """Say what is at a path instead of a file of the wanted kind."""
    if os.path.isdir(path):
        return f"a folder, not a {wanted} file"
    return f"{'not a' if os.path.exists(path) else 'no such'} {wanted} file"


def _is_file(path: Path) -> bool:
    """Return whether a regular file is there; False for a path that is too long or cannot exist."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_known(file: Path) -> bool:
    """Return whether a file's bytes are those that this version was tried with."""
    if file.is_relative_to(MODELS_FOLDER):
        return True
    record = records.current(file)
    return record is not None and record.sha256 in _shipped_hashes()


@cache
def _shipped_hashes() -> frozenset[str]:
    pairs = read_pairs(shipped_file(), MODELS_FOLDER).values()
    return frozenset(source.sha256 for pair in pairs for source in pair.sources if source.sha256)
