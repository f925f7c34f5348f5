"""Registry of pairs: target, drafter, file sources and supported backends.

A user entry replaces a shipped entry completely. The current folder is never read, so that a checked-out repository
cannot choose the files to load.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from localdflash.base.errors import ModelError, did_you_mean
from localdflash.base.files.paths import config_folder
from localdflash.base.files.typed_paths import absolute_path
from localdflash.models.registry import hub, records
from localdflash.models.registry.base_model import base_model, find_drafter
from localdflash.models.registry.hub_names import (
    SAFETENSORS,
    ShortName,
    find_drafter_file,
    parse_file_name,
    parse_short_name,
    select_file,
)
from localdflash.models.registry.other_programs import OLLAMA, find_models, ollama_file
from localdflash.models.registry.pair_entry import (
    HUB,
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
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.drafter_check import check_files, is_companion
from localdflash.models.weights.gguf import cached_headers, is_gguf, read_header
from localdflash.models.weights.split import files_of, first_of

MODELS_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Registry:
    """Pairs by id, in file order."""

    pairs: dict[str, PairEntry]

    def pair(self, pair_id: str) -> PairEntry:
        """Return the entry with this id."""
        if pair_id in self.pairs:
            return self.pairs[pair_id]
        hint = did_you_mean(pair_id, self.pairs)
        raise ModelError(f"no pair {pair_id!r}{hint or '; see `localdflash models list`'}")

    def resolve(self, spec: str, drafter: str | None = None, use_hub: bool = False) -> PairEntry:
        """Return the pair for a user's spec: an id, the path of a .gguf target, or an hf: name (see `hub_names`).

        `drafter` (a path, a folder or an hf: name) replaces the registry's drafter. `use_hub`: may query the hub.
        """
        pair = self._resolve(spec, use_hub)
        if drafter is not None:
            return replace(pair, drafter=self._resolve_drafter(drafter, use_hub))
        if pair.drafter or spec in self.pairs:
            return pair
        with cached_headers():
            return self._with_matched_drafter(pair, use_hub)

    def is_pair_name(self, name: str) -> bool:
        """Return whether `name` is an id of this registry, or has the form of a pair's path, hf: or ollama: name."""
        is_file = name.endswith(".gguf") or os.path.isabs(os.path.expanduser(name))
        return name in self.pairs or name.startswith((HUB, OLLAMA)) or is_file

    def all_pairs(self) -> Iterator[PairEntry]:
        """Yield the pairs of this registry, and those of other GGUF files on this machine."""
        yield from (*self.pairs.values(), *self.unregistered_pairs(), *self.in_other_programs())

    def unregistered_pairs(self) -> Iterator[PairEntry]:
        """Yield the pairs of targets that were downloaded by an hf: name and have no registry entry."""
        known_paths = {source.path for pair in self.pairs.values() for source in pair.sources}
        pairs = [
            self.resolve(f"{HUB}{path.relative_to(models_folder()).as_posix()}")
            for path in sorted(models_folder().glob("*/*/**/*.gguf"))
            if path not in known_paths and path.name == first_of(path.name)
            if (record := records.read(path)) and "/" in record.repository  # not from a package
        ]
        known_paths |= {pair.drafter.path for pair in pairs if pair.drafter}
        yield from (pair for pair in pairs if pair.target.path not in known_paths)

    def in_other_programs(self) -> Iterator[PairEntry]:
        """Yield the pairs of targets that other programs have downloaded; the files are used in place."""
        known_paths = {path.resolve() for pair in self.pairs.values() if (path := pair.target.path).is_file()}
        for model in find_models():
            with cached_headers(), suppress(ModelError):  # a damaged file is not listed
                if model.path.resolve() in known_paths or is_companion(read_header(model.path)):
                    continue
                base = base_model(read_header(model.path)) or "a GGUF file"
                pair = self._with_matched_drafter(_pair_at(model.path), use_hub=False)
                yield replace(pair, id=model.spec, description=f"{base}, downloaded by {model.program}")

    def _resolve(self, spec: str, use_hub: bool) -> PairEntry:
        if spec.startswith(OLLAMA):
            return replace(_pair_at(ollama_file(spec)), id=spec)
        if spec.startswith(HUB):
            short = parse_short_name(spec)
            return self._pair_on_hub(short.with_end(f"/{self._select_model_file(short, use_hub)}") if short else spec)
        if spec in self.pairs or not (spec.endswith(".gguf") or "/" in spec or "\\" in spec):
            return self.pair(spec)
        return _pair_at(absolute_path(spec))

    def _pair_on_hub(self, spec: str) -> PairEntry:
        """Return the entry with this file, else an entry of the same repository with this file, else a bare target."""
        source = parse_file_name(spec, ".gguf")
        target = TargetSource(source.repository, source.file, revision=source.revision)
        siblings = [pair for pair in self.pairs.values() if pair.target.repository == target.repository]
        same_file = next((pair for pair in siblings if pair.target.file == target.file), None)
        if same_file and target.revision in (None, same_file.target.revision):
            return same_file
        record = records.read(target.path)
        saved_drafter = self._saved_drafter(record.drafter) if record and record.drafter else None
        if pair := same_file or next((pair for pair in siblings if pair.backends), None):
            description = f"{target.file}, as {pair.id} otherwise"
            return replace(
                pair,
                id=spec,
                description=description,
                target=target,
                drafter=saved_drafter or pair.drafter,
                memory_gb=None,
            )
        return PairEntry(
            spec,
            "a GGUF file of a Hugging Face repository",
            target,
            saved_drafter,
            target.path,
            backends=("llama.cpp",),
        )

    def _select_model_file(self, short: ShortName, use_hub: bool) -> str:
        """Return the file that a short name selects: installed, else in the registry, else on the hub."""
        folder = models_folder() / short.repository
        installed_names = [
            path.relative_to(folder).as_posix()
            for path in folder.glob("**/*.gguf")
            if (record := records.read(path)) and short.revision in (None, record.revision, record.asked)
        ]
        targets = [pair.target for pair in self.pairs.values() if pair.target.repository == short.repository]
        registered_names = [target.file for target in targets if short.revision in (None, target.revision)]
        for files in (installed_names, registered_names):
            with suppress(ModelError):
                return select_file(short, files)
        if use_hub:
            return select_file(short, hub.list_files(short.repository, short.revision))
        if installed_names:
            return select_file(short, installed_names)
        spec = short.with_end(f":{short.quantization}" if short.quantization else "")
        raise ModelError(f"{spec}: not downloaded; run `localdflash models pull {spec}`")

    def _select_drafter_file(self, short: ShortName, use_hub: bool) -> str:
        """Return the safetensors file of a drafter's repository: installed, else in the registry, else on the hub."""
        drafters = [pair.drafter for pair in self.pairs.values() if pair.drafter]
        installed_names = [path.name for path in (models_folder() / short.repository).glob("*.safetensors")]
        registered_names = [candidate.file for candidate in drafters if candidate.repository == short.repository]
        file = find_drafter_file(installed_names) or find_drafter_file(registered_names)
        if use_hub and not file:
            file = find_drafter_file(hub.list_files(short.repository, short.revision))
        return file or SAFETENSORS

    def _resolve_drafter(self, spec: str, use_hub: bool) -> DrafterSource:
        """Return the drafter at a path or hf: name, with metadata from its registry entry if there is one."""
        if not spec.startswith(HUB):
            return _drafter_at(absolute_path(spec))
        short = parse_short_name(spec)
        source = parse_file_name(
            short.with_end(f"/{self._select_drafter_file(short, use_hub)}") if short else spec, ".gguf", ".safetensors"
        )
        drafters = [pair.drafter for pair in self.pairs.values() if pair.drafter]
        location = (source.repository, source.file)
        registered = next((drafter for drafter in drafters if (drafter.repository, drafter.file) == location), None)
        if registered:
            return replace(registered, revision=source.revision, sha256=None, size=None)
        base_models = (candidate.trained_for for candidate in drafters if candidate.repository == source.repository)
        return DrafterSource(
            source.repository, source.file, revision=source.revision, trained_for=next(base_models, None)
        )

    def _saved_drafter(self, spec: str) -> DrafterSource:
        """Return the drafter that the user once chose for a target; its file may be gone."""
        if spec.startswith(HUB) or os.path.isfile(spec):
            return self._resolve_drafter(spec, use_hub=False)
        return DrafterSource(None, spec)

    def _with_matched_drafter(self, pair: PairEntry, use_hub: bool) -> PairEntry:
        """Return the pair with a drafter matched by base model; use a missing drafter only for a missing target."""
        target = pair.target
        try:
            is_installed = all(part.path.is_file() for part in target.parts)
            if not is_installed and not (use_hub and target.repository):
                return pair
            header = read_header(target.path) if is_installed else read_head(target)[2]
        except ModelError:  # loading reports it
            return pair
        file_name = target.repository.partition("/")[2] if target.repository else target.path.name
        match = find_drafter(header, file_name, self.pairs.values())
        drafter = match.drafter if match else None
        if not (match and drafter and is_installed):
            return replace(pair, drafter=drafter, match=match)
        if not (file := _file_here(drafter)):
            return replace(pair, match=match)
        try:
            check_files(target.path, file)
        except ModelError as error:
            return replace(pair, match=DrafterMatch(None, f"{match.why}, but it does not match the target: {error}"))
        return replace(pair, drafter=drafter, match=match)


def load_registry() -> Registry:
    """Load the shipped registry and the user's registry."""
    pairs = dict(_shipped_pairs())
    user = config_folder() / "models.toml"
    if user.is_symlink() or user.exists():
        pairs |= read_pairs(user, user.parent, pairs)
    return Registry(pairs)


def shipped_file() -> Path:
    """Return the path of models.toml: in an installed package, or next to the package in a source tree."""
    packaged = MODELS_FOLDER.parent / "models.toml"
    return packaged if packaged.exists() else MODELS_FOLDER.parents[1] / "models.toml"


def missing_files(pair: PairEntry) -> tuple[FileSource, ...]:
    """Return the missing files of a pair. A drafter is present as GGUF or safetensors with the same base name."""
    drafter = pair.drafter
    gguf = drafter and _forms(drafter)[0]
    required = pair.target.parts if gguf else pair.sources
    has_drafter = drafter is not None and any(_forms(drafter))
    return tuple(source for source in required if not (has_drafter if source is drafter else source.path.is_file()))


def require_local_files(pair: PairEntry) -> None:
    """Raise ModelError for a missing file of a pair that `models pull` cannot provide."""
    if absent := next((source for source in missing_files(pair) if source.fetched_from is None), None):
        raise ModelError(describe_source(absent))


def describe_source(source: FileSource) -> str:
    """Return a line with source and destination of a missing file."""
    if source.adapted:
        return f"merge {source.adapted.base.name} with {source.adapted.adapter} into {source.path}"
    if source.fetched_from:
        return f"download {source.name} into {source.path.parent}"
    return f"no file at {source.path}; put it there, or correct the entry"


def local_files(pair: PairEntry) -> LocalPair:
    """Return the local files of a pair; ModelError for missing files and for changed sizes."""
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet; see `localdflash models show {pair.id}`")
    if missing := missing_files(pair):
        raise ModelError(_describe_missing(pair, missing))
    gguf, safetensors = _forms(pair.drafter) if pair.drafter else (None, None)
    for first in filter(None, (pair.target.path, gguf, safetensors)):
        for path in files_of(first):
            records.check(path)
    facts = (pair.fim, pair.sampling, pair.kv, pair.next_edit)
    return LocalPair(pair.id, pair.target.path, gguf, safetensors, *facts)


def _describe_missing(pair: PairEntry, missing: tuple[FileSource, ...]) -> str:
    steps = "; ".join(describe_source(source) for source in missing)
    if not any(source.fetched_from for source in missing):
        return f"files of {pair.id!r} are missing: {steps}"
    drafter, registered = pair.drafter, load_registry().pairs.get(pair.id)
    is_chosen = drafter in missing and not pair.match and not (registered and registered.drafter == drafter)
    option = f" --drafter {drafter.spec}" if drafter and is_chosen else ""
    return f"files of {pair.id!r} are missing: run `localdflash models pull {pair.id}{option}` ({steps})"


def _forms(drafter: DrafterSource) -> tuple[Path | None, Path | None]:
    """Return the paths of the drafter as GGUF and as safetensors; None for a missing file."""
    gguf, safetensors = drafter.path.with_suffix(".gguf"), drafter.path.with_suffix(".safetensors")
    return gguf if gguf.is_file() else None, safetensors if safetensors.is_file() else None


def _file_here(drafter: DrafterSource) -> Path | None:
    """Return the path of the drafter if all its files are on this machine, else None."""
    gguf, safetensors = _forms(drafter)
    required_files = (*drafter.parts, drafter.config)
    return gguf or (safetensors if all(source.path.is_file() for source in required_files if source) else None)


def _drafter_at(path: Path) -> DrafterSource:
    if path.is_dir():
        path /= find_drafter_file(file.name for file in path.iterdir()) or SAFETENSORS
    path = files_of(path)[0]
    if path.suffix not in (".gguf", ".safetensors") or not os.path.isfile(path):
        raise ModelError(f"{path}: {_mismatch(path, '.gguf or .safetensors')}; give a path, or hf:owner/name/file")
    return _source_at(path)


def _source_at(path: Path) -> DrafterSource:
    """Return the drafter source of a local file, with the drafter kind from the file's metadata."""
    try:
        return DrafterSource(None, str(path), kind=config_of_file(path).kind)
    except ModelError:  # loading the drafter reports it
        return DrafterSource(None, str(path))


def _pair_at(target: Path) -> PairEntry:
    """Return the pair of a target file (a GGUF by suffix or magic bytes) and the drafter in the same folder."""
    target = files_of(target)[0]
    if not os.path.isfile(target) or not (target.suffix == ".gguf" or is_gguf(target)):
        raise ModelError(f"{target}: {_mismatch(target, '.gguf')}; give the path of a GGUF target, or an id")
    target_stem = target.stem.partition("-00001-of-")[0]
    stem = target_stem.replace("target", "drafter")
    siblings = (target.with_name(stem + end) for end in (".gguf", ".safetensors") if stem != target_stem)
    drafter = next((path for path in siblings if path.is_file()), None)
    return PairEntry(
        id=str(target),
        description="a GGUF file",
        target=TargetSource(None, str(target)),
        drafter=_source_at(drafter) if drafter else None,
        origin=target,
        backends=("llama.cpp",),
    )


def _mismatch(path: Path, required: str) -> str:
    """Return why a path is not a file of the required kind, for an error message."""
    if os.path.isdir(path):
        return f"a folder, not a {required} file"
    return f"{'not a' if os.path.exists(path) else 'no such'} {required} file"


def is_known(file: Path) -> bool:
    """Return whether a file ships with this version, or was verified with a hash of the shipped registry."""
    if file.is_relative_to(MODELS_FOLDER):
        return True
    record = records.current(file)
    return record is not None and record.sha256 in _shipped_hashes()


@cache
def _shipped_pairs() -> dict[str, PairEntry]:
    return read_pairs(shipped_file(), MODELS_FOLDER)


@cache
def _shipped_hashes() -> frozenset[str]:
    return frozenset(source.sha256 for pair in _shipped_pairs().values() for source in pair.sources if source.sha256)
