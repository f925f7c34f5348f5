"""List, describe and download models in child processes, so that the chat neither blocks nor crashes."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from localdflash.base.errors import LocaldflashError, ModelError
from localdflash.models.memory.parts import format_bytes

LIST_SECONDS = 20.0  # timeout of commands that list models
END_SECONDS = 5.0  # timeout for a stopped download to end its own child processes
FIT_SECONDS = 45.0  # timeout of commands that read the headers of missing files from the hub


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Pair of models. `memory`: approximate requirement. `download`: size of missing files. "" means unknown or none.

    `why_not`: why it cannot run here. `recommended`: its expected speed if it is the best chat pair for this machine.
    """

    id: str
    description: str
    memory: str
    is_downloaded: bool
    why_not: str = ""
    download: str = ""
    recommended: str = ""


@dataclass(frozen=True, slots=True)
class PullProgress:
    """Progress of a download: activity, file name, bytes so far and in total."""

    doing: str
    name: str
    done: int
    total: int


async def list_models() -> list[ModelRow]:
    """Return all pairs, registered or downloaded: the recommended pair first, pairs that cannot run here last."""
    rows = map(_make_row, await _run_json(LIST_SECONDS, "models", "list", "--json"))
    return sorted(rows, key=lambda row: (bool(row.why_not), not row.recommended))


async def describe_model(spec: str) -> ModelRow:
    """Return the model at a path or `hf:` name, described from its file header; LocaldflashError if there is none."""
    pair = await _run_json(FIT_SECONDS, "models", "show", "--json", "--", spec)
    target = pair["target"]
    size = format_bytes(pair["bytes_on_disk"]) if pair["bytes_on_disk"] else ""
    facts = (
        size and size + (" with its drafter" if pair["drafter"] else ""),
        f"{pair['context']} tokens of context" if pair["context"] else "",
        " ".join(filter(None, (pair["architecture"], target["quantization"]))),
    )
    return replace(_make_row(pair), description=", ".join(filter(None, facts)))


async def pull_model(spec: str, show: Callable[[PullProgress], None]) -> str:
    """Download a pair's missing files and return its id; ModelError on failure. A stopped download can be resumed."""
    process = await _start_command("models", "pull", "--jsonl", "--", spec)
    assert process.stdout
    assert process.stderr
    errors, pair = asyncio.create_task(process.stderr.read()), ""
    try:
        async for line in process.stdout:
            event = json.loads(line)
            if "total" in event:
                show(PullProgress(event["doing"], event["name"], event["done"], event["total"]))
            pair = event.get("pair", pair)
        if await process.wait() or not pair:
            raise _last_line_error(await errors, "localdflash models pull")
        return pair
    except ValueError:
        raise LocaldflashError("`localdflash models pull` printed malformed output") from None
    finally:
        await _end_process(process, gently=True)  # it may have to end pip
        errors.cancel()


async def explain_fit(pair: str) -> list[str]:
    """Return lines for the user: whether a pair fits here, and its estimated speed; LocaldflashError if unknown."""
    plan = await _run_json(FIT_SECONDS, "models", "plan", "--json", "--", pair)
    needs = f"{format_bytes(plan['total'])} with a margin, {format_bytes(plan['free'])} of {plan['what']} are free"
    speed = plan["speed"]
    drafted = f", {speed['drafted']:.0f} with drafts" if speed["drafted"] else ""
    plain = (
        f"At most {speed['plain']:.0f} tokens a second without drafts{drafted} (estimated)" if speed["plain"] else ""
    )
    return [
        f"{'Fits' if plan['fits'] else 'Does not fit'} on {plan['backend']}: {needs}",
        *([plan["verdict"]] if plan["verdict"] else []),
        f"Context: {plan['context']} of {plan['trained']} tokens",
        *([plain] if plain else []),
    ]


def _make_row(pair: Mapping[str, Any]) -> ModelRow:
    memory = f"{pair['memory_gb']:g} GB" if pair["memory_gb"] else ""
    download = format_bytes(pair["to_fetch"]) if pair["to_fetch"] else ""
    rate = pair.get("recommended_tok_s")  # only in a list
    recommended = f"about {rate:.0f} tok/s" if rate else ""
    return ModelRow(
        pair["id"], pair["description"], memory, not pair["missing"], pair["why_not"], download, recommended
    )


async def _run_json(seconds: float, *arguments: str) -> Any:
    """Run a `localdflash` command and return its JSON output; kill it on timeout or cancellation."""
    process = await _start_command(*arguments)
    command = f"localdflash {' '.join(arguments)}"
    try:
        output, errors = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        raise LocaldflashError(f"`{command}` took longer than {seconds:g} s") from None
    finally:
        await _end_process(process)
    try:
        return json.loads(output)
    except ValueError:
        raise _last_line_error(errors, command) from None


async def _start_command(*arguments: str) -> Process:
    from localdflash.server.spawn import PROGRAM

    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", PROGRAM, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )


def _last_line_error(errors: bytes, command: str) -> ModelError:
    lines = errors.decode(errors="replace").strip().splitlines() or [f"`{command}` printed nothing"]
    return ModelError(lines[-1].removeprefix("localdflash: "))


async def _end_process(process: Process, *, gently: bool = False) -> None:
    """Kill a process if it still runs; `gently`: send SIGINT first, and wait `END_SECONDS`."""
    if process.returncode is None and gently and sys.platform != "win32":
        process.send_signal(signal.SIGINT)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_SECONDS)
    if process.returncode is None:
        process.kill()
        await process.wait()
