"""Find the drafter for a target without a registry entry: the drafter of an entry for the same base model.

Names must be equal except for additions of repackers. A drafter of a merely similar model costs memory and saves
nothing, so it is never used.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TypeVar

from localdflash.models.registry.hub_names import without_quantization
from localdflash.models.registry.pair_entry import DrafterMatch, PairEntry
from localdflash.models.weights.gguf import GGUFHeader

HUB_PAGE = "https://huggingface.co/"

Kind = TypeVar("Kind", str, int)


def find_drafter(header: GGUFHeader, file_name: str, pairs: Iterable[PairEntry]) -> DrafterMatch | None:
    """Return the match for a target file: the drafter, or why it is not used; None if no entry has the base model."""
    with_base = [pair for pair in pairs if pair.drafter and pair.drafter.trained_for]
    for words, pair in (
        (words, pair) for model, words in _evidence(header, file_name) for pair in with_base if _is_model(pair, model)
    ):
        if differs := _difference(header, pair):
            return DrafterMatch(None, f"drafter of {pair.id} not used, though {words}: the file {differs}")
        if not pair.backends:
            return DrafterMatch(None, f"drafter of {pair.id} matches ({words}), but no backend runs it yet")
        return DrafterMatch(pair.drafter, f"drafter of {pair.id}: {words}")
    return None


def base_model(header: GGUFHeader) -> str | None:
    """Return the base model that a file names, else the file's own name."""
    return next(_bases(header), None) or _metadata_value(header, "name", str)


def _evidence(header: GGUFHeader, file_name: str) -> Iterator[tuple[str, str]]:
    """Yield (name of the base model, with or without owner; explanation for the user), most reliable first."""
    for base in _bases(header):
        yield base, f"the file's base model is {base}"
    name, basename = _metadata_value(header, "name", str), _metadata_value(header, "basename", str)
    size, finetune = _metadata_value(header, "size_label", str), _metadata_value(header, "finetune", str)
    version = _metadata_value(header, "version", str)
    for candidate in (name, _join(basename, finetune, version), _join(basename, size, finetune, version)):
        if candidate:
            yield candidate, f"the file's name is {candidate}"
    if {_normalize(word) for word in (finetune, version) if word} - set(_normalize(file_name).split("-")):
        return  # a fine-tune or version that the file name does not mention
    for candidate in (file_name, file_name.partition("_")[2]):  # some file names begin with the owner
        if candidate:
            yield candidate, f"the file name is {without_quantization(candidate)}"


def _bases(header: GGUFHeader) -> Iterator[str]:
    """Yield the base model as owner/name; nothing for a merge of several models."""
    if _metadata_value(header, "base_model.count", int) != 1:
        return
    page = _metadata_value(header, "base_model.0.repo_url", str)
    owner, name = (_metadata_value(header, f"base_model.0.{key}", str) for key in ("organization", "name"))
    if page and page.startswith(HUB_PAGE):
        yield page.removeprefix(HUB_PAGE).strip("/")
    elif owner and name:
        yield f"{owner}/{name}".replace(" ", "-")


def _difference(header: GGUFHeader, pair: PairEntry) -> str:
    """Return how a file differs from the entry's target, or ""."""
    architecture = header.metadata.get("general.architecture")
    if pair.architecture and architecture != pair.architecture:
        return f"is {architecture}, not {pair.architecture}"
    layers = header.metadata.get(f"{architecture}.block_count")
    extra = header.metadata.get(f"{architecture}.nextn_predict_layers", 0)  # for multi-token prediction
    if pair.layers and isinstance(layers, int) and isinstance(extra, int) and layers - extra != pair.layers:
        return f"has {layers - extra} layers, not {pair.layers}"
    return ""


def _is_model(pair: PairEntry, model: str) -> bool:
    """Return whether an entry's target has this name; owners are compared if the name has one."""
    names = (pair.drafter.trained_for if pair.drafter else None, pair.target.repository)
    return _normalize(model) in {_normalize(name if "/" in model else name.partition("/")[2]) for name in names if name}


def _normalize(name: str) -> str:
    """Normalise a name for comparison: lower case, dashes, and no additions of repackers."""
    owner, slash, last = name.rpartition("/")
    return re.sub(r"[\s_]+", "-", f"{owner}{slash}{without_quantization(last)}".lower())


def _join(first: str | None, *others: str | None) -> str | None:
    return "-".join(filter(None, (first, *others))) if first else None


def _metadata_value(header: GGUFHeader, key: str, kind: type[Kind]) -> Kind | None:
    value = header.metadata.get(f"general.{key}")
    return value if isinstance(value, kind) and not isinstance(value, bool) and value != "" else None
