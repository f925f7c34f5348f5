"""Parses models.toml into pairs. An error names the file, the pair and the key of an unknown or invalid value."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

from localdflash.base.convert import Sha256, Text, convert, pattern
from localdflash.base.errors import ModelError, did_you_mean
from localdflash.base.files.toml_file import read_toml
from localdflash.models.backend_names import Runner
from localdflash.models.registry.pair_entry import (
    DrafterSource,
    MergeSource,
    Package,
    PairEntry,
    RanWith,
    TargetSource,
)
from localdflash.models.registry.safe_names import FileName, PackageName, Repository, Revision, Version
from localdflash.models.shapes.dflash_config import Kind
from localdflash.models.weights.gguf import is_gguf
from localdflash.models.weights.split import first_of, names_of

SCHEMA = 1

_Id = Annotated[str, pattern("[a-z0-9][a-z0-9._-]{0,63}", "an id of a-z, 0-9, '.', '_', '-', at most 64 characters")]
_Name = Annotated[str, pattern("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_', '-'")]
_Size = Annotated[int, Meta(ge=1, le=1 << 44)]  # bytes; far above any model

_Types = Mapping[str, Any]  # types by key; a key whose type includes None is optional
_PAIR: _Types = {
    "id": _Id,
    "description": Text,
    "architecture": _Name | None,
    "licence": Text | None,
    "memory_gb": Annotated[float, Meta(ge=0.01, le=10_000)] | None,
    "backends": tuple[Runner, ...],
    "context": Annotated[int, Meta(ge=64, le=100_000_000)] | None,
    "layers": Annotated[int, Meta(ge=1, le=1000)] | None,
    "fim": _Name | None,
    "next_edit": Literal["sweep", "zeta-2", "zeta-2.1"] | None,
    "chat": bool | None,
    "kv": Literal["f16", "int8", "k8v4"] | None,
    "notes": tuple[Text, ...] | None,
    "active": Annotated[float, Meta(ge=0.001, le=10_000)] | None,
    "ran": tuple[Runner, ...] | None,
    "by_parts": tuple[Runner, ...] | None,
    "ran_with": RanWith | None,
    "read": tuple[Text, ...] | None,
    "sampling": dict[str, object] | None,
    "target": dict[str, object],
    "drafter": dict[str, object] | None,
}
_SAMPLING: _Types = {
    "temperature": Annotated[float, Meta(ge=0, le=10)] | None,
    "top_k": Annotated[int, Meta(ge=0, le=1_000_000)] | None,
    "top_p": Annotated[float, Meta(ge=1e-6, le=1)] | None,
    "min_p": Annotated[float, Meta(ge=0, le=1)] | None,
    "repetition_penalty": Annotated[float, Meta(ge=0.1, le=10)] | None,
}
_TARGET: _Types = {"quantization": _Name | None}
_DRAFTER: _Types = {
    "kind": Kind,
    "block_size": Annotated[int, Meta(ge=2, le=64)] | None,
    "taps": tuple[Annotated[int, Meta(ge=0, le=999)], ...] | None,
    "trained_for": Repository | None,
    "ran": tuple[Runner, ...] | None,
    "by_parts": tuple[Runner, ...] | None,
}
_PINS: _Types = {"sha256": Sha256 | None, "size": _Size | None}
_FIXED: _Types = {"file": FileName, "sha256": Sha256, "size": _Size}
_SOURCES: Mapping[str, _Types] = {  # keys of each kind of source, by the key that only this kind has
    "repository": {"repository": Repository, "file": FileName, "revision": Revision | None, **_PINS},
    "path": {"path": Text, **_PINS},
    # An index lists only the hashes of wheels.
    "package": {"package": PackageName, "version": Version, "wheel_sha256": Sha256, "wheel_size": _Size, **_FIXED},
}
# The bytes of a merged target depend only on base and adapter.
_TARGET_SOURCES = {**_SOURCES, "base": {"base": _Id, "adapter": Text, **_FIXED}}


def read_pairs(file: Path, base: Path, known: Mapping[str, PairEntry] | None = None) -> dict[str, PairEntry]:
    """Parse a registry file into pairs by id; paths are relative to `base`, merged targets refer to `known` pairs."""
    pairs: dict[str, PairEntry] = {}
    root = _convert(read_toml(file), {"schema": int, "pair": list[dict[str, object]] | None}, f"{file}: ")
    if root["schema"] != SCHEMA:
        raise ModelError(f"{file}: schema: expected {SCHEMA}; update localdflash")
    for number, entry in enumerate(root.get("pair", ()), 1):
        place = f"{file}: pair {str(entry.get('id', number))[:64]!a}: "
        pair = _pair(entry, file, base, {**(known or {}), **pairs}, place)
        if pair.id in pairs:
            raise ModelError(f"{place}id: already defined; use another id")
        pairs[pair.id] = pair
    return pairs


def _convert(table: Mapping[str, object], types: _Types, place: str) -> dict[str, Any]:
    """Return a table's converted values; ModelError names an unknown, missing or invalid key."""
    for key in table:
        if key not in types:
            raise ModelError(f"{place}{key[:64]!a}: unexpected key{did_you_mean(key, types)}")
    values = {}
    for key, kind in types.items():
        if key in table:
            values[key] = convert(table[key], kind, f"{place}{key}")
        elif type(None) not in get_args(kind):
            raise ModelError(f"{place}{key}: missing")
    return values


def _pair(entry: Mapping[str, object], file: Path, base: Path, known: Mapping[str, PairEntry], place: str) -> PairEntry:
    values = _convert(entry, _PAIR, place)
    if "sampling" in values:
        values["sampling"] = _convert(values["sampling"], _SAMPLING, f"{place}sampling.")
    values["target"] = _target(values["target"], base, known, f"{place}target.")
    values["drafter"] = drafter = _drafter(values["drafter"], base, f"{place}drafter.") if "drafter" in values else None
    layers = values.get("layers")
    if drafter and drafter.taps and layers and drafter.taps[-1] >= layers:
        raise ModelError(f"{place}drafter.taps: block {drafter.taps[-1]} is outside the target's {layers} layers")
    return PairEntry(**values, origin=file)


def _target(table: Mapping[str, object], base: Path, known: Mapping[str, PairEntry], place: str) -> TargetSource:
    values = _source(table, _TARGET_SOURCES, _TARGET, base, place, ".gguf")
    if "base" in values:
        name, adapter = values.pop("base"), values.pop("adapter")
        if name not in known:
            raise ModelError(f"{place}base: no pair {name!r} is defined above")
        if known[name].target.adapted:
            raise ModelError(f"{place}base: {name!r} is a merged target; name its base")
        if not adapter.endswith(".safetensors"):
            raise ModelError(f"{place}adapter: expected a .safetensors file, found {adapter!r}")
        values["adapted"] = MergeSource(known[name].target, str(base / os.path.expanduser(adapter)))
    return TargetSource(**values)


def _drafter(table: Mapping[str, object], base: Path, place: str) -> DrafterSource:
    drafter = DrafterSource(**_source(table, _SOURCES, _DRAFTER, base, place, ".gguf", ".safetensors"))
    if drafter.taps is not None and (not drafter.taps or list(drafter.taps) != sorted(set(drafter.taps))):
        raise ModelError(f"{place}taps: expected ascending, distinct blocks")
    return drafter


def _source(
    table: Mapping[str, object], sources: Mapping[str, _Types], others: _Types, base: Path, place: str, *suffixes: str
) -> dict[str, Any]:
    """Return the converted values of a table, as fields of FileSource and of `others`."""
    origins = [key for key in sources if key in table]
    if len(origins) != 1:
        raise ModelError(f"{place[:-1]}: expected exactly one of the keys {', '.join(sources)}")
    values = {"repository": None, **_convert(table, {**sources[origins[0]], **others}, place)}
    key = "path" if "path" in values else "file"
    name = values.pop(key)
    values["file"] = str(base / os.path.expanduser(name)) if key == "path" else name
    if not (name.endswith(suffixes) or (key == "path" and is_gguf(Path(values["file"])))):
        raise ModelError(f"{place}{key}: expected a {' or '.join(suffixes)} file, found {name!r}")
    if (first := first_of(name)) != name:
        raise ModelError(f"{place}{key}: expected the first part, {first}")
    if names_of(name) != (name,) and (pin := next((pin for pin in _PINS if pin in values), None)):
        raise ModelError(f"{place}{pin}: cannot pin a model in several files; pin its revision")
    if "package" in values:
        values["package"] = Package(*(values.pop(key) for key in ("package", "version", "wheel_sha256", "wheel_size")))
    return values
