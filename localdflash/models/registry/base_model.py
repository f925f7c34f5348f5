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

T = TypeVar("T", str, int)


def find_drafter(header: GGUFHeader, called: str, pairs: Iterable[PairEntry]) -> DrafterMatch | None:
    """Return the drafter for a target file `called` so, or the reason against it; None if no entry has its model."""
    known = [pair for pair in pairs if pair.drafter and pair.drafter.trained_for]
    found = ((words, pair) for model, words in _evidence(header, called) for pair in known if _is_model(pair, model))
    for words, pair in found:
        if differs := _difference(header, pair):
            return DrafterMatch(None, f"not that of {pair.id}, though {words}: it {differs}")
        if not pair.backends:
            return DrafterMatch(None, f"that of {pair.id} would be it, for {words}; nothing here runs it yet")
        return DrafterMatch(pair.drafter, f"drafter of {pair.id}: {words}")
    return None


def base_model(header: GGUFHeader) -> str | None:
    """Return the base model that a file names, else the file's own name."""
    return next(_bases(header), None) or _said(header, "name", str)


def _evidence(header: GGUFHeader, called: str) -> Iterator[tuple[str, str]]:
    """Yield names of a file's base model (with or without owner), each with an explanation, most reliable first."""
    for base in _bases(header):
        yield base, f"the file says base model {base}"
    name, basename = _said(header, "name", str), _said(header, "basename", str)
    size, added = _said(header, "size_label", str), _said(header, "finetune", str)
    version = _said(header, "version", str)
    for said in (name, _joined(basename, added, version), _joined(basename, size, added, version)):
        if said:
            yield said, f"the file calls itself {said}"
    if {_plain(word) for word in (added, version) if word} - set(_plain(called).split("-")):
        return  # a fine-tune or version that its name hides
    for said in (called, called.partition("_")[2]):  # some put the owner in front
        if said:
            yield said, f"it is called {without_quantization(said)}"


def _bases(header: GGUFHeader) -> Iterator[str]:
    """Yield the base model as owner/name; nothing for a merge of several models."""
    if _said(header, "base_model.count", int) != 1:
        return
    page = _said(header, "base_model.0.repo_url", str)
    owner, name = (_said(header, f"base_model.0.{key}", str) for key in ("organization", "name"))
    if page and page.startswith(HUB_PAGE):
        yield page.removeprefix(HUB_PAGE).strip("/")
    elif owner and name:
        yield f"{owner}/{name}".replace(" ", "-")


def _difference(header: GGUFHeader, pair: PairEntry) -> str:
    """Return the difference between a file and the entry's target, or ""."""
    architecture = header.metadata.get("general.architecture")
    if pair.architecture and architecture != pair.architecture:
        return f"is {architecture}, not {pair.architecture}"
    blocks = header.metadata.get(f"{architecture}.block_count")
    ahead = header.metadata.get(f"{architecture}.nextn_predict_layers", 0)  # blocks that predict tokens further ahead
    if pair.layers and isinstance(blocks, int) and isinstance(ahead, int) and blocks - ahead != pair.layers:
        return f"has {blocks - ahead} layers, not {pair.layers}"
    return ""


def _is_model(pair: PairEntry, model: str) -> bool:
    """Return whether an entry's target has this name; owners are compared if the name has one."""
    names = (pair.drafter.trained_for if pair.drafter else None, pair.target.repository)
    return _plain(model) in {_plain(name if "/" in model else name.partition("/")[2]) for name in names if name}


def _plain(name: str) -> str:
    """Normalise a name for comparison: lower case, dashes, and no additions of repackers."""
    owner, slash, last = name.rpartition("/")
    return re.sub(r"[\s_]+", "-", f"{owner}{slash}{without_quantization(last)}".lower())


def _joined(first: str | None, *others: str | None) -> str | None:
    return "-".join(filter(None, (first, *others))) if first else None


def _said(header: GGUFHeader, key: str, kind: type[T]) -> T | None:
    value = header.metadata.get(f"general.{key}")
    return value if isinstance(value, kind) and not isinstance(value, bool) and value != "" else None
