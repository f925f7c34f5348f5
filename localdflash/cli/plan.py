"""`localdflash models plan` and `ps`: memory of a pair by part, planned before its download, and measured."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from localdflash.base.errors import LocaldflashError, OutOfMemory
from localdflash.cli import shell_completion
from localdflash.cli.output import print_fields, print_json, print_table, say
from localdflash.models.backend_names import PLANNED
from localdflash.models.config import KV_FORMATS
from localdflash.models.memory.parts import IN_MEMORY, format_bytes, total

if TYPE_CHECKING:
    from localdflash.loading.plan.planner import Plan, RegistryOnly, Speed
    from localdflash.models.backend_names import Backend

MAX_CACHED_BYTES = 64_000_000  # fewer bytes of weights may stay in the processor's caches


@click.command()
@click.argument("spec", metavar="ID", shell_complete=shell_completion.pairs)
@click.option("--context", type=click.IntRange(0), default=0, help="Context in tokens; 0: the largest that fits.")
@click.option("--backend", type=click.Choice(PLANNED), default="auto", help="Backend; auto: chosen for this machine.")
@click.option("--device", default="auto", help="GPU, cpu or gpu; auto: see `localdflash serve --help`.")
@click.option("--gpu-layers", type=click.IntRange(-1), default=-1, help="Layers on the GPU; -1: as many as fit.")
@click.option(
    "--kv", type=click.Choice(KV_FORMATS), default="auto", help="KV cache type, see `localdflash serve --help`."
)
@click.option("--beside", metavar="ID", help="Pair already in memory, such as the completion pair.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sizes in bytes.")
def plan(
    spec: str,
    context: int,
    backend: "Backend",
    device: str,
    gpu_layers: int,
    kv: str,
    beside: str | None,
    as_json: bool,
) -> int:
    """Plan the memory of a pair on this machine: an id of `models list`, a GGUF file, or hf:owner/name/file.gguf.

    Missing files are not downloaded: their headers are read from the hub, or offline the registry's sizes are used.
    Exit code 4 if the pair does not fit.
    """
    from localdflash.loading.plan.planner import RegistryOnly, make_plan

    try:
        result = make_plan(spec, context, backend, device, gpu_layers, beside, kv)
    except RegistryOnly as error:
        return _plan_by_registry(error, as_json)
    if as_json:
        print_json(asdict(result) | {"total": result.total})
    else:
        sizes = result.parts | {"margin": result.margin, "total": result.total, f"free {result.what}": result.free}
        print_table(("PART", "SIZE"), [(name, format_bytes(size)) for name, size in sizes.items()])
        print()
        print_fields(_fields(result))
    return 0 if result.fits else OutOfMemory.exit_code


def _plan_by_registry(error: "RegistryOnly", as_json: bool) -> int:
    """Print a plan from registry data, for a pair whose files cannot be read, and return the exit code."""
    from localdflash.loading.plan.planner import plan_by_registry

    result = plan_by_registry(error.pair)
    say(f"{error}; using registry data only:")
    if as_json:
        print_json(asdict(result))
    else:
        needs = [
            ("memory, at a small context", format_bytes(result.memory)),
            ("free memory", format_bytes(result.free)),
        ]
        print_fields([("pair", result.pair), *needs, ("fits", "yes" if result.fits else "no")])
    return 0 if result.fits else OutOfMemory.exit_code


def _fields(result: "Plan") -> Iterator[tuple[str, str]]:
    yield "pair", result.pair
    yield "backend", f"{result.backend} ({result.why})"
    yield "drafter", result.drafter
    yield "context", f"{result.context} of {result.trained} tokens"
    yield "fits", ("yes" if result.fits else "no") + (f": {result.verdict}" if result.verdict else "")
    without = f", without the drafter {result.largest_context_without_drafter}" if result.drafter != "none" else ""
    yield "largest context that fits", f"{result.largest_context} tokens{without}"
    best = result.best_quantization or "none"
    condition = "" if result.fits else ", without the drafter"
    whole = " all on the GPU" if any(name.endswith(IN_MEMORY) for name in result.parts) else ""
    yield "quantization", f"{result.quantization}; best that fits{whole} at this context{condition}: {best}"
    yield from _speed(result.speed)


def _speed(speed: "Speed") -> Iterator[tuple[str, str]]:
    bandwidth = speed.bandwidth
    if speed.plain is None:
        yield "speed", "not known: the GPU reads all weights, and llama.cpp's devices are not measured"
        return
    yield "memory bandwidth", f"{bandwidth.value:.1f} GB/s, {bandwidth.how}, {bandwidth.day}"
    read = format_bytes(speed.bytes_per_token)
    cached = "; more while they stay in a cache" if speed.bytes_per_token < MAX_CACHED_BYTES else ""
    beside = f" in memory, and {format_bytes(speed.bytes_on_gpu)} on the GPU" if speed.bytes_on_gpu else ""
    source = f"{read} of weights{beside} are read for each{cached}"
    yield "speed, estimated", f"at most {format_rate(speed.plain)} tokens/s without drafts: {source}"
    if speed.tau and speed.drafted:
        tau = f"{speed.tau.value:.2f} tokens per verify step ({speed.tau.how}, {speed.tau.day})"
        yield "with drafts", f"at most {format_rate(speed.drafted)} tokens/s: {tau}"
    else:
        yield "with drafts", "not known: no acceptance of this pair was measured here"


def format_rate(tokens_per_second: float) -> str:
    """Format a speed, with one decimal if it is below 10."""
    return f"{tokens_per_second:.0f}" if tokens_per_second >= 10 else f"{tokens_per_second:.1f}"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, sizes in bytes.")
def ps(as_json: bool) -> None:
    """Show the loaded pairs with roles and memory, planned and measured, by part. Exit code 1 without a daemon."""
    from localdflash.server.client import find_daemon

    client = find_daemon()
    if client is None:
        raise LocaldflashError("no daemon is running; `localdflash serve` starts one")
    state: Mapping[str, Any] = client.get("/ps")
    if as_json:
        print_json(state)
        return
    for pair in state["pairs"]:
        print_fields(_pair_fields(pair))
        print()
        if pair.get("memory"):
            print_table(("PART", "PLANNED", "MEASURED"), _part_sizes(pair))
            print()
    if "idle_seconds" in state:
        print_fields([("idle", f"{state['idle_seconds']:.0f} s")])


def _pair_fields(pair: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
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


def _part_sizes(state: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    planned, measured = state.get("predicted") or {}, state["memory"]
    for name in dict.fromkeys((*planned, *measured)):
        sizes = (format_bytes(parts[name]) if name in parts else "-" for parts in (planned, measured))
        yield name, *sizes
    yield "total", format_bytes(total(planned)), format_bytes(total(measured))
