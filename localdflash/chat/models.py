"""Which models there are and whether one fits here, asked of the command line in a process of its own.

So the chat imports neither torch nor llama.cpp, and what is slow or broken there does not stop it.
"""

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from localdflash.backend.parts import gigabytes
from localdflash.errors import LocaldflashError, ModelError

LIST_SECONDS = 20.0
FIT_SECONDS = 45.0  # headers of files that are not here are read from the hub


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A pair. `memory`: roughly what it needs, "" if unknown; `runs`: whether a backend runs it today."""

    id: str
    description: str
    memory: str
    here: bool
    runs: bool


async def rows() -> list[ModelRow]:
    """All pairs of the registry and those that were downloaded; LocaldflashError if they cannot be listed."""
    return [_row(pair) for pair in await _json(LIST_SECONDS, "models", "list", "--json")]


async def fit(pair: str) -> list[str]:
    """Lines on whether a pair fits on this machine, and how fast it can be; LocaldflashError if that is unknown."""
    return list(_fit_lines(await _json(FIT_SECONDS, "models", "plan", "--json", "--", pair)))


def _row(pair: Mapping[str, Any]) -> ModelRow:
    memory = f"{pair['memory_gb']:g} GB" if pair["memory_gb"] else ""
    return ModelRow(pair["id"], pair["description"], memory, not pair["missing"], bool(pair["backends"]))


def _fit_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    needs = f"{gigabytes(plan['total'])} with a margin, {gigabytes(plan['free'])} of {plan['what']} are free"
    if plan["fits"]:
        yield f"Fits on {plan['backend']}: {needs}"
    else:
        yield f"Does not fit on {plan['backend']}: {needs}"
    if plan["verdict"]:
        yield plan["verdict"]
    yield f"Context: {plan['context']} of {plan['trained']} tokens"
    speed = plan["speed"]
    drafted = f", {speed['drafted']:.0f} with drafts" if speed["drafted"] else ""
    yield f"At most {speed['plain']:.0f} tokens a second without drafts{drafted} (estimated)"


async def _json(seconds: float, *arguments: str) -> Any:
    """A command's JSON output; the command is killed if it takes too long or nobody waits any more."""
    from localdflash.server.spawn import PROGRAM

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", PROGRAM, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    command = f"localdflash {' '.join(arguments)}"
    try:
        printed, said = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise LocaldflashError(f"`{command}` took longer than {seconds:g} s") from None
    finally:
        await _end(process)
    try:
        return json.loads(printed)
    except ValueError:
        lines = said.decode(errors="replace").strip().splitlines() or [f"`{command}` printed nothing"]
        raise ModelError(lines[-1].removeprefix("localdflash: ")) from None


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
