"""Parse models.toml into pairs. Unknown keys and invalid values raise an error with file and line."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from localdflash.base.files.strict_toml import TomlTable, array_of, integer, matching, number, one_of, read_toml, text
from localdflash.models.backend_names import RUNNERS
from localdflash.models.registry import safe_names
from localdflash.models.registry.pair_entry import (
    DrafterKind,
    DrafterSource,
    MergeSource,
    Package,
    PairEntry,
    RanWith,
    Read,
    TargetSource,
)
from localdflash.models.weights.gguf import is_gguf
from localdflash.models.weights.split import first_of, names_of

SCHEMA = 1
MAX_FILE_BYTES = 1 << 44  # bytes; far above any model
_PACKAGE_KEYS = ("version", "wheel_sha256", "wheel_size")
_SOURCE_KEYS = ("repository", "package", "file", "path", "revision", "sha256", "size", *_PACKAGE_KEYS)

_SAMPLING: Mapping[str, Callable[[object], float]] = {
    "temperature": number(0, 10),
    "top_k": integer(0, 1_000_000),
    "top_p": number(1e-6, 1),
    "min_p": number(0, 1),
    "repetition_penalty": number(0.1, 10),
}

_pair_id = matching(r"[a-z0-9][a-z0-9._-]{0,63}", "an id of a-z, 0-9, '.', '_', '-', at most 64 characters")
_name = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_', '-'")
_sha256 = matching(r"[0-9a-f]{64}", "64 lower-case hexadecimal digits")


def read_pairs(file: Path, base: Path, known: Mapping[str, PairEntry] | None = None) -> dict[str, PairEntry]:
    """Parse a registry file into pairs by id; paths are relative to `base`, merged targets refer to `known` pairs."""
    root = read_toml(file)
    root.reject_unknown_keys("schema", "pair")
    if root.required("schema", integer(0, 1_000_000)) != SCHEMA:
        raise root.error("schema", f"unknown schema (expected {SCHEMA}); update localdflash")
    pairs: dict[str, PairEntry] = {}
    entries: dict[str, TomlTable] = {}
    for entry in root.tables("pair"):
        pair = _pair(entry, base, {**(known or {}), **pairs})
        if pair.id in pairs:
            raise entry.error("id", f"{pair.id!r} is already defined on line {entries[pair.id].line('id')}")
        pairs[pair.id], entries[pair.id] = pair, entry
    return pairs


def _pair(entry: TomlTable, base: Path, known: Mapping[str, PairEntry]) -> PairEntry:
    entry.reject_unknown_keys(
        *("id", "description", "architecture", "licence", "memory_gb", "backends", "context", "layers", "fim", "notes"),
        *("active", "ran", "by_parts", "ran_with", "read", "sampling", "target", "drafter"),
    )
    pair_id = entry.required("id", _pair_id)
    target = entry.table("target")
    if target is None:
        raise entry.error(None, f"pair {pair_id!r} has no [pair.target]")
    layers = entry.optional("layers", integer(1, 1000))
    sampling: dict[str, float] = {}
    if table := entry.table("sampling"):
        table.reject_unknown_keys(*_SAMPLING)
        sampling = {name: table.required(name, convert) for name, convert in _SAMPLING.items() if name in table}
    return PairEntry(
        id=pair_id,
        description=entry.required("description", text),
        target=_target(target, base, known),
        drafter=_drafter(drafter, base, layers) if (drafter := entry.table("drafter")) else None,
        origin=entry.file,
        backends=entry.required("backends", array_of(one_of(*RUNNERS))),
        architecture=entry.optional("architecture", _name),
        licence=entry.optional("licence", text),
        memory_gb=entry.optional("memory_gb", number(0.01, 10_000)),
        context=entry.optional("context", integer(64, 100_000_000)),
        layers=layers,
        fim=entry.optional("fim", _name),
        notes=entry.optional("notes", array_of(text)) or (),
        active=entry.optional("active", number(0.001, 10_000)),
        ran=_runners(entry, "ran"),
        by_parts=_runners(entry, "by_parts"),
        ran_with=cast(RanWith | None, entry.optional("ran_with", one_of(*get_args(RanWith)))),
        read=cast(tuple[Read, ...], entry.optional("read", array_of(one_of(*get_args(Read)))) or ()),
        sampling=sampling,
    )


def _target(table: TomlTable, base: Path, known: Mapping[str, PairEntry]) -> TargetSource:
    if "base" in table:
        return _merged_target(table, base, known)
    table.reject_unknown_keys(*_SOURCE_KEYS, "quantization")
    return TargetSource(**_source(table, base, ".gguf"), quantization=table.optional("quantization", _name))


def _merged_target(table: TomlTable, base: Path, known: Mapping[str, PairEntry]) -> TargetSource:
    """Return a merged target. Its hash and size are pinned, because they depend only on base and adapter."""
    table.reject_unknown_keys("base", "adapter", "file", "sha256", "size", "quantization")
    name = table.required("base", _pair_id)
    if name not in known:
        raise table.error("base", f"no pair {name!r} is defined above")
    if known[name].target.adapted:
        raise table.error("base", f"{name!r} is a merged target; name its base")
    adapter, file = table.required("adapter", text), table.required("file", safe_names.file_in_repository)
    for key, value, suffix in (("adapter", adapter, ".safetensors"), ("file", file, ".gguf")):
        if not value.endswith(suffix):
            raise table.error(key, f"expected a {suffix} file, found {value!r}")
    return TargetSource(
        None,
        file,
        sha256=table.required("sha256", _sha256),
        size=table.required("size", integer(1, MAX_FILE_BYTES)),
        adapted=MergeSource(known[name].target, str(base / os.path.expanduser(adapter))),
        quantization=table.optional("quantization", _name),
    )


def _drafter(table: TomlTable, base: Path, layers: int | None) -> DrafterSource:
    table.reject_unknown_keys(*_SOURCE_KEYS, "kind", "block_size", "taps", "trained_for", "ran", "by_parts")
    taps = table.optional("taps", array_of(integer(0, 999)))
    if taps is not None and (not taps or list(taps) != sorted(set(taps))):
        raise table.error("taps", "expected ascending, distinct blocks")
    if taps and layers is not None and taps[-1] >= layers:
        raise table.error("taps", f"block {taps[-1]} is outside the target's {layers} layers")
    return DrafterSource(
        **_source(table, base, ".gguf", ".safetensors"),
        kind=cast(DrafterKind, table.required("kind", one_of(*get_args(DrafterKind)))),
        block_size=table.optional("block_size", integer(2, 64)),
        taps=taps,
        trained_for=table.optional("trained_for", safe_names.repository),
        ran=_runners(table, "ran"),
        by_parts=_runners(table, "by_parts"),
    )


def _runners(table: TomlTable, key: str) -> tuple[str, ...]:
    return table.optional(key, array_of(one_of(*RUNNERS))) or ()


def _source(table: TomlTable, base: Path, *suffixes: str) -> dict[str, Any]:
    """Return the FileSource fields of an entry: repository and file, or a path, or a package and its member."""
    if ("path" in table) == any(key in table for key in ("repository", "package", "file")):
        raise table.error(None, "expected either repository and file, or path, or package, version and file")
    key, convert = ("path", text) if "path" in table else ("file", safe_names.file_in_repository)
    name = table.required(key, convert)
    if not (name.endswith(suffixes) or (key == "path" and is_gguf(base / os.path.expanduser(name)))):
        raise table.error(key, f"expected a {' or '.join(suffixes)} file, found {name!r}")
    if (first := first_of(name)) != name:
        raise table.error(key, f"expected the first part, {first}")
    pinned_key = next((pin for pin in ("sha256", "size", "package") if pin in table), None)
    if pinned_key and names_of(name) != (name,):
        raise table.error(pinned_key, "cannot pin a model in several files; pin its revision")
    if "package" in table:
        return _member(table, name)
    if unexpected := next((key for key in _PACKAGE_KEYS if key in table), None):
        raise table.error(unexpected, "only allowed with package")
    if key == "path" and "revision" in table:
        raise table.error("revision", "a path on this machine has no revision")
    return {
        "repository": None if key == "path" else table.required("repository", safe_names.repository),
        "file": str(base / os.path.expanduser(name)) if key == "path" else name,
        "revision": table.optional("revision", safe_names.revision),
        "sha256": table.optional("sha256", _sha256),
        "size": table.optional("size", integer(1, MAX_FILE_BYTES)),
    }


def _member(table: TomlTable, name: str) -> dict[str, Any]:
    """Return the FileSource fields of a package member. Hashes are pinned, because an index lists only wheels."""
    if unexpected := next((key for key in ("repository", "revision") if key in table), None):
        raise table.error(unexpected, "not allowed with package; use version")
    package = Package(
        table.required("package", safe_names.package),
        table.required("version", safe_names.version),
        table.required("wheel_sha256", _sha256),
        table.required("wheel_size", integer(1, MAX_FILE_BYTES)),
    )
    return {
        "repository": None,
        "file": name,
        "sha256": table.required("sha256", _sha256),
        "size": table.required("size", integer(1, MAX_FILE_BYTES)),
        "package": package,
    }
