"""`localdflash models`: list pairs, show one, manage its files."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, get_args

import click

from localdflash.cli import shell_completion
from localdflash.cli.output import print_fields, print_json, print_table
from localdflash.cli.plan import format_rate, plan, ps
from localdflash.cli.pull import pull, remove
from localdflash.loading.plan.describe_pair import run_types
from localdflash.models.memory.parts import format_bytes
from localdflash.models.registry import records
from localdflash.models.registry.pair_entry import DrafterSource, FileSource, PairEntry
from localdflash.models.registry.registry import describe_source, load_registry, missing_files, shipped_file

if TYPE_CHECKING:
    from localdflash.loading.plan.here import PairAssessment

FACT_SOURCES = {
    "target": "the target's file",
    "drafter": "the drafter's file",
    "config": "the drafter's published configuration",
    "peers": "other public programs that name or pin the files",
}
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def command() -> None:
    """List, download and remove pairs of target and drafter."""


@command.command("list")
@_json
def list_pairs(as_json: bool) -> None:
    """List all pairs with required memory, backend, maximum speed and installed files."""
    registry = load_registry()
    pairs = list(registry.all_pairs())
    if as_json:
        from localdflash.loading.plan import recommend as plan

        best = plan.recommend("chat", registry.pairs.values())
        rates = {best.pair.id: best.tokens_per_second} if best else {}
        print_json([_document(pair) | {"recommended_tok_s": rates.get(pair.id)} for pair in pairs])
        return
    from localdflash.loading.plan.describe_pair import describe_pair
    from localdflash.loading.plan.here import assess_pair

    assessments = [assess_pair(describe_pair(pair)) for pair in pairs]
    rows = (
        (
            *(pair.id, _memory(pair), _verdict(one)),
            "-" if one.tokens_per_second is None else f"{format_rate(one.tokens_per_second)}/s",
            pair.drafter.kind if pair.drafter else "none",
            "missing" if missing_files(pair) else "here",
            _on_disk(pair),
            pair.description,
        )
        for pair, one in zip(pairs, assessments, strict=True)
    )
    print_table(("PAIR", "MEMORY", "RUNS HERE", "SPEED", "DRAFTER", "FILES", "ON DISK", "DESCRIPTION"), rows)
    for bandwidth in dict.fromkeys(one.bandwidth for one in assessments if one.bandwidth):
        print(
            f"\nSPEED: at most, without drafting: {bandwidth.value:.1f} GB/s ({bandwidth.how}, {bandwidth.day}) divided"
            " by the bytes of weights read per token, estimated for missing files. Weights in a cache can be faster."
        )


@command.command()
@_json
def recommend(as_json: bool) -> None:
    """Name the best chat pair and completion pair for this machine, and why not the next larger one."""
    from localdflash.loading.plan import recommend as plan

    pairs = load_registry().pairs.values()
    found = [one for role in get_args(plan.Role) if (one := plan.recommend(role, pairs))]
    if as_json:
        print_json([{**vars(one), "pair": one.pair.id, "larger": one.larger and one.larger.id} for one in found])
        return
    for one in found:
        steps = [one.install, f"localdflash models pull {one.pair.id}" if missing_files(one.pair) else ""]
        here = ", then ".join(filter(None, steps)) or "here"
        rate = format_rate(one.tokens_per_second)
        print(f"{one.role}: {one.pair.id}, {_memory(one.pair)}, about {rate} tok/s ({here})")
        if one.larger:
            print(f"  not {one.larger.id}: {one.against_larger}")
    if found:
        print("\nSpeed without drafting, from the memory bandwidth. Details: `localdflash models plan ID`.")


@command.command()
@click.argument("spec", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Use another drafter: a path, or hf:owner/name/file.")
@_json
def show(spec: str, drafter: str | None, as_json: bool) -> None:
    """Show the details of a pair.

    SPEC is an id of `models list`, the path of a GGUF file, hf:owner/name:Q4_K_M, or hf:owner/name/file.gguf.
    """
    from localdflash.loading.plan.describe_pair import describe_pair

    pair = describe_pair(load_registry().resolve(spec, drafter, use_hub=True))
    if as_json:
        print_json(_document(pair))
    else:
        print_fields(_fields(pair))


def _verdict(one: "PairAssessment") -> str:
    """Return the backend that runs the pair on this machine, or the reason why none does."""
    if one.backend is None:
        return "nothing yet"
    if not one.fits:
        return "too large"
    return f"{one.backend}, untried" if one.untried else one.backend


def _document(pair: PairEntry) -> dict[str, Any]:
    """Return a pair as JSON values; sizes are in bytes. `to_fetch`: size of the missing files, None if unknown."""
    from localdflash.loading.plan.here import why_not

    return asdict(pair) | {
        "drafter": asdict(pair.drafter) | {"format": pair.drafter.format} if pair.drafter else None,
        "origin": str(pair.origin),
        "missing": [describe_source(source) for source in missing_files(pair)],
        "to_fetch": _to_fetch(pair),
        "why_not": why_not(pair),
        "bytes_on_disk": _bytes_on_disk(pair),
        "verified": {
            str(source.path): asdict(record) for source in pair.sources if (record := records.current(source.path))
        },
    }


def _to_fetch(pair: PairEntry) -> int | None:
    missing = (source.adapted.base if source.adapted else source for source in missing_files(pair))
    to_download = [source for source in missing if not source.path.is_file()]
    sizes = [source.package.size if source.package else source.size for source in to_download]
    return None if None in sizes else sum(filter(None, sizes))


def _fields(pair: PairEntry) -> Iterator[tuple[str, str]]:
    yield "pair", pair.id
    yield "description", pair.description
    yield "architecture", _or_unknown(pair.architecture)
    yield "layers", _or_unknown(pair.layers)
    yield "context", f"{pair.context} tokens" if pair.context else "not known"
    yield "licence", _or_unknown(pair.licence)
    yield "memory", _memory(pair)
    yield "runs on", ", ".join(pair.backends) or "none yet"
    is_shipped = pair.origin == shipped_file()
    if is_shipped:
        yield "ran", _ran(pair.ran, pair.by_parts, f"with {pair.ran_with}" if pair.ran_with else "")
    predicts = f"next edits ({pair.next_edit})" if pair.next_edit else "no fill-in-the-middle format"
    yield "completion", pair.fim or predicts
    yield "target", f"{pair.target.name} ({_or_unknown(pair.target.quantization)})"
    yield from _source_fields(pair.target)
    if types := run_types(pair.target.path):
        yield "  weights", types
    if pair.drafter:
        yield "drafter", f"{pair.drafter.name} ({_shape(pair.drafter)})"
        if is_shipped:
            yield "  ran", _ran(pair.drafter.ran, pair.drafter.by_parts, "drafters of its kind")
        yield from _source_fields(pair.drafter)
    elif pair.match and pair.match.drafter:
        yield "drafter", f"none here; `localdflash models pull {pair.id}` fetches {pair.match.drafter.name}"
    else:
        yield "drafter", "none"
    if pair.match:
        yield "  because", pair.match.why
    yield from [("missing", describe_source(source)) for source in missing_files(pair)] or [("files", "here")]
    yield "on disk", _on_disk(pair)
    yield "entry in", str(pair.origin)
    if pair.read:
        yield "facts from", ", ".join(FACT_SOURCES.get(what, what) for what in pair.read)
    if pair.unknown:
        yield "not known", ", ".join(pair.unknown)
    for note in pair.notes:
        yield "note", note


def _source_fields(source: FileSource) -> Iterator[tuple[str, str]]:
    """Yield revision and hash of a file, as the registry pins them or as its download recorded them."""
    record = records.current(source.path)
    if source.package:
        yield "  package", source.package.requirement
    if source.adapted:
        yield "  made of", f"{source.adapted.base.name} and {source.adapted.adapter}"
    if source.repository:
        fetched = f"{record.revision} (asked for {record.asked})" if record else None
        yield "  revision", source.revision or fetched or "main when it is fetched"
    if record:
        yield "  sha256", f"{record.sha256} (verified)"
    else:
        unpinned = "not pinned: compared with the hub's" if source.repository else "none: a file on this machine"
        yield "  sha256", source.sha256 or unpinned


def _ran(ran: tuple[str, ...], by_parts: tuple[str, ...], how: str) -> str:
    """Return the backends on which tests ran a whole model, or parts of it."""
    parts = f"by parts on {', '.join(by_parts)}" if by_parts else ""
    return ", ".join(filter(None, (f"on {', '.join(ran)}" if ran else "", parts, how if ran else ""))) or "on none yet"


def _shape(drafter: DrafterSource) -> str:
    block = f", block {drafter.block_size}" if drafter.block_size else ""
    taps = f", taps {' '.join(map(str, drafter.taps))}" if drafter.taps else ""
    return f"{drafter.kind}, {drafter.format}{block}{taps}"


def _bytes_on_disk(pair: PairEntry) -> int:
    return sum(source.path.stat().st_size for source in pair.sources if source.path.is_file())


def _on_disk(pair: PairEntry) -> str:
    count = _bytes_on_disk(pair)
    return format_bytes(count) if count else "nothing"


def _memory(pair: PairEntry) -> str:
    from localdflash.loading.plan.here import needed_bytes

    if pair.memory_gb:
        return f"{pair.memory_gb:g} GB"
    return format_bytes(needed) if (needed := needed_bytes(pair)) else "not known"


def _or_unknown(value: object) -> str:
    return "not known" if value is None else str(value)


for _subcommand in (pull, remove, plan, ps):
    command.add_command(_subcommand)
