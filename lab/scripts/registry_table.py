"""The registry's table in docs/models.md, which `tables.py` writes."""

from collections.abc import Iterator

from localdflash.models.memory.parts import format_bytes
from localdflash.models.registry.pair_entry import PairEntry, TargetSource
from localdflash.models.registry.registry import MODELS_FOLDER, shipped_file
from localdflash.models.registry.registry_file import read_pairs


def pairs() -> Iterator[list[str]]:
    """Yield the pairs of the registry."""
    yield ["pair", "architecture", "for", "backends", "target's file", "needs", "licence", "drafter", "facts read in"]
    for pair in read_pairs(shipped_file(), MODELS_FOLDER).values():
        links = (_link(number, source) for number, source in enumerate(pair.read, 1))
        yield [
            f"`{pair.id}`",
            pair.architecture or "not known",
            " and ".join(_purposes(pair)),
            ", ".join(pair.backends),
            _describe_download(pair.target),
            f"{pair.memory_gb:g} GB",
            (pair.licence or "not read").removesuffix(" License"),
            pair.drafter.kind if pair.drafter else "lookup only",
            ", ".join(links),
        ]


def _purposes(pair: PairEntry) -> Iterator[str]:
    """Yield what a pair is for, with the format of its prompts."""
    if pair.chat:
        yield "chat"
    if pair.fim:
        yield f"code (`{pair.fim}`)"
    if pair.next_edit:
        yield f"edits (`{pair.next_edit}`)"


def _describe_download(target: TargetSource) -> str:
    """Return the size of what is downloaded for a target."""
    if target.fetched_from is None:
        return "in the package"
    source = target.adapted.base if target.adapted else target
    size = source.package.size if source.package else source.size
    return format_bytes(size) if size else "not read"


def _link(number: int, source: str) -> str:
    """Return a link to a page, or another source's name."""
    return f"[{number}](https://{source})" if "/" in source else source
