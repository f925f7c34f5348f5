"""Names of hub files: `hf:owner/name/file`, `hf:owner/name` or `hf:owner/name:QUANTIZATION`, all with `@revision`.

The quantization is read from the file name, else from the folder name. A split model is selected by its first part.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from localdflash.base.convert import convert
from localdflash.base.errors import ModelError
from localdflash.models.registry.pair_entry import HUB, FileSource
from localdflash.models.registry.safe_names import FileName, Repository, Revision
from localdflash.models.weights.split import first_of, names_of

SAFETENSORS = "model.safetensors"  # a drafter's file; a split one is model-00001-of-00002.safetensors and so on
DEFAULT_QUANTIZATION = "Q4_K_M"  # if a repository holds several files
MAX_LISTED = 40

_FULL = re.compile(r"hf:(?P<repository>[^/@]*/[^/@]*)(?:@(?P<revision>[^/]*))?/(?P<file>.*)", re.DOTALL)
_SHORT = re.compile(r"hf:(?P<repository>[^/@:]*/[^/@:]*)(?:@(?P<revision>[^/:]*))?(?::(?P<quantization>[\w-]{1,40}))?")
_QUANTIZATION = re.compile(
    r"(?:^|(?<=[-._]))((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|MXFP4\w*|NVFP4\w*|BF16|FP?16|FP?32))(?=[-.]|$)",
    re.ASCII | re.IGNORECASE,
)
_COMPANION = re.compile(r"mmproj|imatrix|^mtp-", re.IGNORECASE)  # companion files of a model


@dataclass(frozen=True)
class ShortName:
    """Repository with optional revision and quantization; None means the default."""

    repository: str
    revision: str | None
    quantization: str | None

    def with_end(self, end: str) -> str:
        """Return the name followed by `end`: `/file` or `:QUANTIZATION`."""
        return f"{HUB}{self.repository}{f'@{self.revision}' if self.revision else ''}{end}"


def parse_short_name(spec: str) -> ShortName | None:
    """Parse `hf:owner/name[@revision][:quantization]`; return None for other forms, raise ModelError if invalid."""
    if not (match := _SHORT.fullmatch(spec)):
        return None
    return ShortName(*_repository(spec, match), match["quantization"])


def parse_file_name(spec: str, *suffixes: str) -> FileSource:
    """Parse `hf:owner/name[@revision]/file`, whose file has one of these suffixes."""
    match = _FULL.fullmatch(spec)
    if not match:
        raise ModelError(
            f"{spec[:300]!r}: expected hf:owner/name/file{suffixes[0]} or hf:owner/name:{DEFAULT_QUANTIZATION}, with or"
            " without @revision after name"
        )
    repository, revision = _repository(spec, match)
    file = convert(match["file"], FileName, repr(spec[:300]))
    if not file.endswith(suffixes):
        raise ModelError(f"{spec!r}: expected a {' or '.join(suffixes)} file")
    return FileSource(repository, first_of(file), revision=revision)


def _repository(spec: str, match: re.Match[str]) -> tuple[str, str | None]:
    subject = repr(spec[:300])
    return convert(match["repository"], Repository, subject), convert(match["revision"], Revision | None, subject)


def quantization_of(file: str) -> str:
    """Return the quantization in a file's name, else in its folder's name, in upper case; "" if there is none."""
    for part in reversed(PurePosixPath(file).parts):
        if quantizations := _QUANTIZATION.findall(part.removesuffix(".gguf")):
            return str(quantizations[-1]).upper()
    return ""


def without_quantization(name: str) -> str:
    """Return the name of a file or repository without quantization, part number and the marks `i1` and `GGUF`."""
    name = re.sub(r"(?:-\d{5}-of-\d{5})?\.gguf$", "", PurePosixPath(name).name)
    while (shorter := re.sub(rf"[-._](?:{_QUANTIZATION.pattern}|i1|GGUF)$", "", name, flags=re.IGNORECASE)) != name:
        name = shorter
    return name


def select_file(name: ShortName, files: Iterable[str]) -> str:
    """Return the file that a short name selects; ModelError with the choices unless exactly one file matches."""
    models = sorted(filter(_is_selectable, files))
    matching = models
    if name.quantization:
        matching = _of_quantization(models, name.quantization.upper())
    elif len(models) > 1:
        matching = _of_quantization(models, DEFAULT_QUANTIZATION)
    if len(matching) == 1:
        return matching[0]
    if not models:
        raise ModelError(f"{name.repository} has no GGUF file; use a repository that has one, often NAME-GGUF")
    problem = f"no {name.quantization} file" if name.quantization and not matching else "several files match"
    raise ModelError(f"{name.repository}: {problem}; choose one of {_list_choices(name, matching or models)}")


def find_drafter_file(files: Iterable[str]) -> str | None:
    """Return the safetensors file of a drafter, or the first part of a split file; None if there is none."""
    candidates = {file for file in files if file == SAFETENSORS or _is_first_part(file)}
    return SAFETENSORS if SAFETENSORS in candidates else min(candidates, default=None)


def _is_first_part(file: str) -> bool:
    stem, suffix = SAFETENSORS.split(".")
    is_model = file.startswith(f"{stem}-") and file.endswith(f".{suffix}")
    return is_model and len(names_of(file)) > 1 and first_of(file) == file


def _is_selectable(file: str) -> bool:
    try:
        convert(file, FileName, file)
    except ModelError:
        return False
    return file.endswith(".gguf") and first_of(file) == file and not _COMPANION.search(PurePosixPath(file).name)


def _of_quantization(models: list[str], quantization: str) -> list[str]:
    """Return the files of this quantization, else the files of Unsloth's dynamic variant (UD-)."""
    exact = [file for file in models if quantization_of(file) == quantization]
    return exact or [file for file in models if quantization_of(file) == f"UD-{quantization}"]


def _list_choices(name: ShortName, models: list[str]) -> str:
    """Return the available names for an error message, in short form if unambiguous."""
    labels = [quantization_of(file) for file in models]
    is_unambiguous = all(labels) and len(set(labels)) == len(labels)
    ends = [f":{label}" for label in labels] if is_unambiguous else [f"/{file}" for file in models]
    choices = list(map(name.with_end, ends))
    more = f" and {len(choices) - MAX_LISTED} more" if len(choices) > MAX_LISTED else ""
    return ", ".join(choices[:MAX_LISTED]) + more
