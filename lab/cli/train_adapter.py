"""`localdflash train adapter`: teach a quantized chat model to complete code at the cursor."""

from pathlib import Path

import click

from localdflash.base.errors import ModelError, UsageError
from localdflash.lab.cli.progress_line import ProgressLine
from localdflash.lab.cli.training import (
    choose_device,
    device_option,
    folder_argument,
    prepare_option,
    seed_option,
    threads_option,
)

DEFAULT_RANK = 16


@click.command(short_help="Teach SmolLM2 to complete code at the cursor.")
@folder_argument
@click.option("--pair", metavar="PAIR", default="smollm2-135m", show_default=True, help="A pair, or a .gguf file.")
@click.option(
    "--tokens",
    type=click.IntRange(1000),
    default=6_000_000,
    show_default=True,
    help="Total tokens to train on, prompts and restarts included.",
)
@click.option(
    "--answers",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Answers of the target, mixed in to keep its chat quality: the answers/ folder of `train drafter`.",
)
@click.option("--rank", type=click.IntRange(1, 64), help=f"Rank of a new adapter; by default {DEFAULT_RANK}.")
@click.option(
    "--learning-rate", type=click.FloatRange(1e-6, 1.0), default=1e-3, show_default=True, help="Peak learning rate."
)
@prepare_option
@device_option
@threads_option
@seed_option
def adapter(
    folder: Path,
    pair: str,
    tokens: int,
    answers: Path | None,
    rank: int | None,
    learning_rate: float,
    prepare: bool,
    device: str | None,
    threads: int,
    seed: int,
) -> int:
    """Train a LoRA adapter on the prompts of completions.

    Writes FOLDER/adapter.safetensors, and FOLDER/target.gguf, the merged target. The data are pinned packages of PyPI
    and npm. A stopped run continues from its last checkpoint; --tokens may change. For a pair that has an adapter,
    training continues from that adapter: use another --seed for other examples.
    """
    if answers and not (answers / "index.bin").is_file():
        raise UsageError(f"--answers {answers}: no answers; use the answers/ folder of `localdflash train drafter`")
    training_device = choose_device(device, threads)
    from localdflash.lab.train import adapter_stages
    from localdflash.lab.train.adapter_export import rank_of
    from localdflash.lab.train.adapter_training import schedule_on

    target, start = _files(pair)
    if start and rank is not None:
        raise UsageError(f"--rank: {pair} has an adapter to start from; name its base pair for a new adapter")
    rank = rank or (rank_of(start, target) if start else DEFAULT_RANK)
    work = adapter_stages.AdapterWork(folder, target, rank, answers, start, training_device)
    meter = ProgressLine()
    adapter_stages.check(work)
    adapter_stages.make_examples(work, tokens, seed, meter)
    if prepare:
        meter.say(f"prepared: copy {folder / 'examples'} to train on another machine")
        return 0
    adapter_stages.train(work, schedule_on(training_device, tokens, learning_rate, seed), meter)
    meter.say(f"use it: localdflash complete FILE:LINE:COLUMN --pair {folder / 'target.gguf'}")
    return 0


def _files(pair: str) -> tuple[Path, Path | None]:
    """Return the base model to train on, and the adapter that the pair's target was merged from, or None."""
    from localdflash.models.registry.registry import describe_source, load_registry, local_files

    entry = load_registry().resolve(pair)
    if not (merged := entry.target.adapted):
        return local_files(entry).target, None
    if not merged.base.path.is_file():
        raise ModelError(f"{pair}: its base is missing: {describe_source(merged.base)}")
    return merged.base.path, Path(merged.adapter)
