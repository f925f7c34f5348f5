"""`localdflash models ps`: the memory that the running daemon holds, beside what was planned."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from localdflash.cli.output import print_fields, print_json, print_table
from localdflash.errors import LocaldflashError


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sizes in bytes.")
def ps(as_json: bool) -> None:
    """Show the pair that the daemon holds: memory planned and measured, part by part. Exit code 1 without a daemon."""
    from localdflash.server.client import find

    client = find()
    if client is None:
        raise LocaldflashError("no daemon is running; `localdflash serve` starts one")
    state: Mapping[str, Any] = client.get("/ps")
    if as_json:
        print_json(state)
        return
    print_fields(_fields(state))
    if state.get("memory"):
        print()
        print_table(("PART", "PLANNED", "MEASURED"), _parts(state))


def _fields(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("pair", "backend", "device", "context", "rows", "requests"):
        if state.get(name, "") != "":
            yield name, str(state[name])
    if state.get("since"):
        yield "loaded", f"{datetime.fromtimestamp(state['since']):%Y-%m-%d %H:%M:%S}"
    if "idle_seconds" in state:
        yield "idle", f"{state['idle_seconds']:.0f} s"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    from localdflash.backend.parts import gigabytes, total

    planned, measured = state.get("predicted") or {}, state["memory"]
    for name in dict.fromkeys((*planned, *measured)):
        yield name, _size(planned, name), _size(measured, name)
    yield "total", gigabytes(total(planned)), gigabytes(total(measured))


def _size(parts: Mapping[str, int], name: str) -> str:
    from localdflash.backend.parts import gigabytes

    return gigabytes(parts[name]) if name in parts else "-"
