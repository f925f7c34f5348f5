"""Output of `localdflash bench speed` for a chat pair: tables and fields."""

from typing import Any

from localdflash.cli.output import print_fields, print_table


def is_chat_pair(pair: str, suite: str) -> bool:
    """Return whether to run the chat suite: as `suite` requests, or for "auto" if the target has no FIM tokens."""
    if suite != "auto":
        return suite == "chat"
    from localdflash.base.errors import ModelError
    from localdflash.models.registry.registry import load_registry, local_files
    from localdflash.text.fim_formats import detect
    from localdflash.text.tokenizer import Tokenizer

    files = local_files(load_registry().resolve(pair))
    if files.fim:
        return False
    try:
        detect(Tokenizer.load(files.target))
    except ModelError:
        return True
    return False


def has_different_outputs(result: dict[str, Any]) -> bool:
    """Return whether an output with drafting differs from the output without."""
    identical = [count.split("/") for count in result["identical"].values()]
    return any(same != prompts for same, prompts in identical)


def show(result: dict[str, Any]) -> None:
    """Print the result of `chat_run.run`."""
    rows = {**result["categories"], "overall": result["overall"]}
    modes = [mode for mode in result["overall"]["over_plain"] if mode != "forced"]
    print_table(
        (
            "CATEGORY",
            "PLAIN TOK/S",
            "TOK/S",
            *(f"{mode.upper()} / PLAIN" for mode in modes),
            "/ LLAMA.CPP",
            "TAU",
            "IDENTICAL",
        ),
        [_row(name, row, modes) for name, row in rows.items()],
    )
    print()
    print_fields(_fields(result))


def _row(name: str, row: dict[str, Any], modes: list[str]) -> tuple[str, ...]:
    over_llama = row.get("over_llama_cpp", {}).get("drafting")
    taus = " ".join(f"{row['tau'][mode]:.2f}" for mode in ("drafting", "forced") if mode in row["tau"])
    return (
        name,
        f"{row['tok_s']['plain']:.0f}",
        f"{row['tok_s']['drafting']:.0f}",
        *(f"{row['over_plain'][mode]:.2f}" for mode in modes),
        f"{over_llama:.2f}" if over_llama else "-",
        taus,
        " ".join(row["identical"].values()),
    )


def _fields(result: dict[str, Any]) -> list[tuple[str, str]]:
    overall = result["overall"]
    fields = [("DFlash's share of drafted steps", f"{100 * overall['dflash_share_of_drafted']:.0f} %")]
    if distribution := result.get("distribution"):
        fields.append(("χ² at 0.7", f"p = {distribution['p_value']:.3f} over {distribution['draws']} draws"))
    for mode, costs in result.get("step_ms", {}).items():
        fields.append((f"a step, {mode}", ", ".join(f"{part} {ms:.2f}" for part, ms in costs.items()) + " ms"))
    if verify := result.get("verify"):
        over = ", ".join(f"{width} {cost:.2f}" for width, cost in verify["over_ar"].items())
        fields.append(("verify step by width, relative to a single-token step", over))
    for point in result.get("context", ()):
        rates = ", ".join(f"{mode} {rate:.0f}" for mode, rate in point["tok_s"].items())
        taus = ", ".join(f"{mode} {tau:.2f}" for mode, tau in point["tau"].items())
        fields.append((f"context {point['context']}", f"tokens/s {rates}; tokens per verify {taus}"))
    for backend, row in result.get("other_plain", {}).items():
        fields.append((f"plain on {backend}", f"{row['tok_s']:.0f} tokens/s, {row['over_plain']:.2f}× this backend"))
    if daemon := result.get("daemon"):
        warm, typed, cold = (daemon[name]["p50"] for name in ("warm_ms", "typed_ms", "cold_start_ms"))
        fields.append(("first token", f"{warm:.0f} ms warm, {typed:.0f} typed, {cold:.0f} from a cold start"))
    return fields
