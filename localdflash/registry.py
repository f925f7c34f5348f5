"""The registry of pairs: which target goes with which drafter, where the files come from, what runs them today.

Entries come from the `models.toml` that ships with the package and from the user's own in the configuration folder,
whose entries replace shipped ones whole. No other place is read, least of all the folder one happens to work in: a
repository must not choose the files that are loaded.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from localdflash.errors import ModelError
from localdflash.paths import cache_folder, config_folder
from localdflash.strict_toml import Table, did_you_mean, listed, matching, number, one_of, read_toml, text, whole

SCHEMA = 1
BACKENDS = ("llama.cpp", "torch", "cuda", "remote")

Kind = Literal["dflash", "dflash2"]

_pair_id = matching(r"[a-z0-9][a-z0-9._-]{0,63}", "an id of a-z, 0-9, '.', '_', '-', at most 64 characters")
_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_', '-'")
_sha256 = matching(r"[0-9a-f]{64}", "64 lower-case hexadecimal digits")
_repository = matching(r"(?!.*(?:--|\.\.))\w[\w.-]{0,94}(?<![.-])/\w[\w.-]{0,94}(?<![.-])", "a repository, owner/name")
_in_repository = matching(
    r"(?:\w[\w.-]{0,94}(?<![.-])/){0,4}\w[\w.-]{0,190}", "a file inside the repository, without '..' or a leading '/'"
)


@dataclass(frozen=True, slots=True)
class Source:
    """A file: in a Hugging Face repository, or, when `repository` is None, at an absolute path on this machine."""

    repository: str | None
    file: str
    sha256: str | None

    @property
    def path(self) -> Path:
        """Where the file lies on this machine once it is there."""
        return models_folder() / self.repository / self.file if self.repository else Path(self.file)

    @property
    def name(self) -> str:
        """The file with its repository, as one would look it up."""
        return f"{self.repository}/{self.file}" if self.repository else self.file


@dataclass(frozen=True, slots=True)
class TargetSource(Source):
    """The target's GGUF file."""

    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterSource(Source):
    """The drafter's weights. `taps`: 0-based target blocks whose output it reads; None where only the file says."""

    kind: Kind = "dflash"
    block_size: int | None = None
    taps: tuple[int, ...] | None = None

    @property
    def format(self) -> str:
        """`gguf` or `safetensors`."""
        return PurePosixPath(self.file).suffix[1:]


@dataclass(frozen=True, slots=True)
class Pair:
    """An entry. What is None is not known; `memory_gb` (10^9 bytes) is the least that runs it at a small context."""

    id: str
    description: str
    target: TargetSource
    drafter: DrafterSource | None
    origin: Path  # the file that says so
    backends: tuple[str, ...]  # those that run it today
    architecture: str | None = None
    licence: str | None = None
    memory_gb: float | None = None
    context: int | None = None  # tokens
    layers: int | None = None
    fim: str | None = None  # the target's fill-in-the-middle format
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalPair:
    """A pair whose files are on this machine. Drafters that nothing here can run are left out."""

    id: str
    target: Path
    drafter_gguf: Path | None
    drafter_safetensors: Path | None
    fim: str | None
    context: int | None


@dataclass(frozen=True, slots=True)
class Registry:
    """All pairs by id, in the order of the files."""

    pairs: dict[str, Pair]

    def pair(self, pair_id: str) -> Pair:
        """Return the entry with this id."""
        if pair_id in self.pairs:
            return self.pairs[pair_id]
        hint = did_you_mean(pair_id, self.pairs)
        raise ModelError(f"no pair {pair_id!r}{hint or '; see `localdflash models list`'}")

    def resolve(self, spec: str) -> Pair:
        """Find the pair that a user asks for: an id, or the path of a .gguf target."""
        if spec in self.pairs or not (spec.endswith(".gguf") or "/" in spec or "\\" in spec):
            return self.pair(spec)
        return _pair_at(Path(os.path.expanduser(spec)).absolute())


def load_registry() -> Registry:
    """Read the shipped registry and the user's."""
    pairs = _read(shipped_file(), Path(__file__).parent)
    user = config_folder() / "models.toml"
    if user.is_symlink() or user.exists():
        pairs |= _read(user, user.parent)
    return Registry(pairs)


def shipped_file() -> Path:
    """models.toml: inside an installed package, next to the package in a source tree."""
    package = Path(__file__).parent
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def models_folder() -> Path:
    """Where downloaded files lie, as owner/name/file."""
    return cache_folder() / "models"


def missing_files(pair: Pair) -> tuple[Source, ...]:
    """List what is not on this machine. Either form of a drafter will do, under the same name in the same folder."""
    missing: list[Source] = [] if pair.target.path.is_file() else [pair.target]
    if pair.drafter and _runs(pair.drafter) and not any(_forms(pair.drafter)):
        missing.append(pair.drafter)
    return tuple(missing)


def how_to_get(source: Source) -> str:
    """Say where a missing file comes from and where it goes."""
    if source.repository:
        beside = " and config.json" if source.file.endswith(".safetensors") else ""
        return f"download {source.name}{beside} into {source.path.parent}"
    return f"no file at {source.path}: put it there, or correct the entry"


def local_files(pair: Pair) -> LocalPair:
    """Find the pair's files on this machine; ModelError says what is missing and how to get it."""
    if not pair.backends:
        raise ModelError(f"no backend runs {pair.id!r} yet; see `localdflash models show {pair.id}`")
    if missing := missing_files(pair):
        steps = "; ".join(how_to_get(source) for source in missing)
        raise ModelError(f"files of {pair.id!r} are missing: {steps}")
    gguf, safetensors = _forms(pair.drafter) if pair.drafter and _runs(pair.drafter) else (None, None)
    return LocalPair(pair.id, pair.target.path, gguf, safetensors, pair.fim, pair.context)


def _runs(drafter: DrafterSource) -> bool:
    """Tell whether any drafter here runs this kind; DFlash 2 needs a local convolution and a candidate selector."""
    return drafter.kind == "dflash"


def _forms(drafter: DrafterSource) -> tuple[Path | None, Path | None]:
    """Find the drafter as GGUF and as safetensors."""
    gguf, safetensors = drafter.path.with_suffix(".gguf"), drafter.path.with_suffix(".safetensors")
    return gguf if gguf.is_file() else None, safetensors if safetensors.is_file() else None


def _pair_at(target: Path) -> Pair:
    """Make a pair of a file and the one beside it that says `drafter` where its own name says `target`."""
    if target.suffix != ".gguf" or not target.is_file():
        raise ModelError(f"{target}: no such .gguf file; give the path of a GGUF target, or an id")
    stem = target.stem.replace("target", "drafter")
    siblings = (target.with_name(stem + end) for end in (".gguf", ".safetensors") if stem != target.stem)
    drafter = next((path for path in siblings if path.is_file()), None)
    return Pair(
        id=str(target),
        description="a GGUF file",
        target=TargetSource(None, str(target), None),
        drafter=DrafterSource(None, str(drafter), None) if drafter else None,
        origin=target,
        backends=("llama.cpp",),
    )


def _read(file: Path, base: Path) -> dict[str, Pair]:
    """Read the entries of one registry file; paths in it are relative to `base`."""
    root = read_toml(file)
    root.only("schema", "pair")
    if root.required("schema", whole(0, 1_000_000)) != SCHEMA:
        raise root.error("schema", f"this version of localdflash reads schema {SCHEMA}")
    pairs: dict[str, Pair] = {}
    entries: dict[str, Table] = {}
    for entry in root.tables("pair"):
        pair = _pair(entry, base)
        if pair.id in pairs:
            raise entry.error("id", f"{pair.id!r} is already defined on line {entries[pair.id].line('id')}")
        pairs[pair.id], entries[pair.id] = pair, entry
    return pairs


def _pair(entry: Table, base: Path) -> Pair:
    entry.only(
        *("id", "description", "architecture", "licence", "memory_gb", "backends", "context", "layers", "fim", "notes"),
        *("target", "drafter"),
    )
    pair_id = entry.required("id", _pair_id)
    target = entry.table("target")
    if target is None:
        raise entry.error(None, f"pair {pair_id!r} has no [pair.target]")
    layers = entry.optional("layers", whole(1, 1000))
    return Pair(
        id=pair_id,
        description=entry.required("description", text),
        target=_target(target, base),
        drafter=_drafter(drafter, base, layers) if (drafter := entry.table("drafter")) else None,
        origin=entry.file,
        backends=entry.required("backends", listed(one_of(*BACKENDS))),
        architecture=entry.optional("architecture", _name),
        licence=entry.optional("licence", text),
        memory_gb=entry.optional("memory_gb", number(0.01, 10_000)),
        context=entry.optional("context", whole(64, 100_000_000)),
        layers=layers,
        fim=entry.optional("fim", _name),
        notes=entry.optional("notes", listed(text)) or (),
    )


def _target(table: Table, base: Path) -> TargetSource:
    table.only("repository", "file", "path", "sha256", "quantization")
    place = _place(table, base, ".gguf")
    return TargetSource(*place, table.optional("sha256", _sha256), table.optional("quantization", _name))


def _drafter(table: Table, base: Path, layers: int | None) -> DrafterSource:
    table.only("repository", "file", "path", "sha256", "kind", "block_size", "taps")
    taps = table.optional("taps", listed(whole(0, 999)))
    if taps is not None and (not taps or list(taps) != sorted(set(taps))):
        raise table.error("taps", "expected ascending blocks, each once")
    if taps and layers is not None and taps[-1] >= layers:
        raise table.error("taps", f"block {taps[-1]} is not below the target's {layers} layers")
    return DrafterSource(
        *_place(table, base, ".gguf", ".safetensors"),
        table.optional("sha256", _sha256),
        kind=cast(Kind, table.required("kind", one_of("dflash", "dflash2"))),
        block_size=table.optional("block_size", whole(2, 64)),
        taps=taps,
    )


def _place(table: Table, base: Path, *suffixes: str) -> tuple[str | None, str]:
    """Repository and file, or None and an absolute path: an entry gives one or the other."""
    if ("path" in table) == ("repository" in table or "file" in table):
        raise table.error(None, "expected either repository and file, or path")
    key, convert = ("path", text) if "path" in table else ("file", _in_repository)
    name = table.required(key, convert)
    if not name.endswith(suffixes):
        raise table.error(key, f"expected a {' or '.join(suffixes)} file, found {name!r}")
    repository = None if key == "path" else table.required("repository", _repository)
    return repository, name if repository else str(base / os.path.expanduser(name))
