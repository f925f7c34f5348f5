"""`localdflash models ps`: the pairs that the running daemon holds, and their memory beside what was planned."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from localdflash.base.errors import LocaldflashError
from localdflash.cli.output import print_fields, print_json, print_table
from localdflash.models.memory.parts import gigabytes, total


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sizes in bytes.")
def ps(as_json: bool) -> None:
    """Show the loaded pairs with roles and memory, planned and measured, by part. Exit code 1 without a daemon."""
    from localdflash.server.client import find

    client = find()
    if client is None:
        raise LocaldflashError("no daemon is running; `localdflash serve` starts one")
    state: Mapping[str, Any] = client.get("/ps")
    if as_json:
        print_json(state)
        return
    for pair in state["pairs"]:
        print_fields(_fields(pair))
        print()
        if pair.get("memory"):
            print_table(("PART", "PLANNED", "MEASURED"), _parts(pair))
            print()
    if "idle_seconds" in state:
        print_fields([("idle", f"{state['idle_seconds']:.0f} s")])


def _fields(pair: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "pair", str(pair["pair"])
    yield "for", " and ".join(pair["roles"]) or "chats that name it"
    for name in ("backend", "device", "context", "rows", "requests"):
        if pair.get(name, "") != "":
            yield name, str(pair[name])
    if pair.get("gpu_check"):
        yield "gpu check", pair["gpu_check"]
    if pair.get("drafters"):
        yield "drafts by", ", ".join(pair["drafters"])
    if pair.get("doing"):
        yield "loading", str(pair["doing"])
    if pair.get("since"):
        yield "loaded", f"{datetime.fromtimestamp(pair['since']):%Y-%m-%d %H:%M:%S}"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    planned, measured = state.get("predicted") or {}, state["memory"]
    for name in dict.fromkeys((*planned, *measured)):
        sizes = (gigabytes(parts[name]) if name in parts else "-" for parts in (planned, measured))
        yield name, *sizes
    yield "total", gigabytes(total(planned)), gigabytes(total(measured))
