"""`localdflash models`: what pairs there are and what is known of one."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from localdflash.cli.output import print_fields, print_json, print_table
from localdflash.registry import DrafterSource, Pair, Source, how_to_get, load_registry, missing_files

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """List the pairs of target and drafter."""


@command.command("list")
@_json
def list_pairs(as_json: bool) -> None:
    """List all pairs: memory they need, backends that run them today, whether their files are here."""
    pairs = load_registry().pairs.values()
    if as_json:
        print_json([_document(pair) for pair in pairs])
        return
    rows = ((pair.id, _memory(pair), _backends(pair), _kind(pair), _here(pair), pair.description) for pair in pairs)
    print_table(("PAIR", "MEMORY", "RUNS ON", "DRAFTER", "FILES", "DESCRIPTION"), rows)


@command.command()
@click.argument("pair_id", metavar="ID")
@_json
def show(pair_id: str, as_json: bool) -> None:
    """Show all that is known of one pair: an ID of `models list`, or the path of a GGUF file."""
    pair = load_registry().resolve(pair_id)
    if as_json:
        print_json(_document(pair))
    else:
        print_fields(_fields(pair))


def _document(pair: Pair) -> dict[str, Any]:
    """Turn an entry into JSON; `missing` says what to do for each file that is not here."""
    drafter = asdict(pair.drafter) | {"format": pair.drafter.format} if pair.drafter else None
    missing = [how_to_get(source) for source in missing_files(pair)]
    return asdict(pair) | {"drafter": drafter, "origin": str(pair.origin), "missing": missing}


def _fields(pair: Pair) -> Iterator[tuple[str, str]]:
    yield "pair", pair.id
    yield "description", pair.description
    yield "architecture", _known(pair.architecture)
    yield "layers", _known(pair.layers)
    yield "context", f"{pair.context} tokens" if pair.context else "not known"
    yield "licence", _known(pair.licence)
    yield "memory", _memory(pair)
    yield "runs on", _backends(pair)
    yield "completion", pair.fim or "no fill-in-the-middle format"
    yield "target", f"{pair.target.name} ({_known(pair.target.quantization)})"
    yield "  sha256", _hash(pair.target)
    if pair.drafter:
        yield "drafter", f"{pair.drafter.name} ({_shape(pair.drafter)})"
        yield "  sha256", _hash(pair.drafter)
    else:
        yield "drafter", "none"
    yield from [("missing", how_to_get(source)) for source in missing_files(pair)] or [("files", "here")]
    yield "entry in", str(pair.origin)
    for note in pair.notes:
        yield "note", note


def _shape(drafter: DrafterSource) -> str:
    block = f", block {drafter.block_size}" if drafter.block_size else ""
    taps = f", taps {' '.join(map(str, drafter.taps))}" if drafter.taps else ""
    return f"{drafter.kind}, {drafter.format}{block}{taps}"


def _hash(source: Source) -> str:
    if source.sha256:
        return source.sha256
    return "not pinned: pinned at first download" if source.repository else "none: a file on this machine"


def _here(pair: Pair) -> str:
    return "missing" if missing_files(pair) else "here"


def _kind(pair: Pair) -> str:
    return pair.drafter.kind if pair.drafter else "none"


def _memory(pair: Pair) -> str:
    return f"{pair.memory_gb:g} GB" if pair.memory_gb else "not known"


def _backends(pair: Pair) -> str:
    return ", ".join(pair.backends) or "none yet"


def _known(value: object) -> str:
    return "not known" if value is None else str(value)
