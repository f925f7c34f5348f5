"""The stages from a GGUF target to its drafter, each resumable: prompts, answers, drafter.

Run as `python -m localdflash.train.stages STAGE FOLDER`; everything that is computed lies in FOLDER.
"""

import hashlib
import sys
import time
from pathlib import Path

import click

from localdflash.errors import LocaldflashError

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_target = click.option("--target", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))


def fingerprint(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _report(line: str) -> None:
    print(time.strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)  # noqa: T201


@click.group()
def main() -> None:
    """Train a drafter for a target, stage by stage."""


@main.command()
@_folder
@click.option("--wheels", required=True, type=click.Path(file_okay=False, path_type=Path), help="Kept downloads.")
@click.option("--count", type=click.IntRange(1), default=16_000, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def prompts(folder: Path, wheels: Path, count: int, seed: int) -> None:
    """Write FOLDER/prompts.jsonl."""
    from localdflash.train import prompts as making

    _report(f"{making.write(folder / 'prompts.jsonl', making.build(wheels, count, seed)):,} prompts")


@main.command()
@_folder
@_target
@click.option("--tokens", type=click.IntRange(1), default=1_000_000, show_default=True, help="Of answers, in all.")
@click.option("--sequences", type=click.IntRange(1, 64), default=32, show_default=True, help="Answered at a time.")
@click.option("--taps", default="1,8,14,20,26", show_default=True, help="Target blocks whose output is kept.")
@click.option("--backend", type=click.Choice(["cpu", "llama.cpp"]), default="cpu", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Of llama.cpp.")
def answers(folder: Path, target: Path, tokens: int, sequences: int, taps: str, backend: str, threads: int) -> None:
    """Let a GGUF answer FOLDER/prompts.jsonl, into FOLDER/answers."""
    from localdflash.train import answering
    from localdflash.train.kept_answers import AnswerWriter
    from localdflash.train.parallel_cpu import ParallelCpuTarget
    from localdflash.train.parallel_target import Parallel, ParallelTarget
    from localdflash.train.prompts import read

    blocks = [int(tap) for tap in taps.split(",")]
    engine: Parallel
    if backend == "cpu":
        engine = ParallelCpuTarget(target, sequences, answering.CONTEXT, blocks)
    else:
        engine = ParallelTarget(target, sequences, answering.CONTEXT, blocks, threads)
    try:
        about = {"sha256": fingerprint(target), "taps": blocks, "hidden_size": engine.hidden_size}
        with AnswerWriter(folder / "answers", about) as writer:
            asker = answering.Asker(target)
            answering.answer_prompts(engine, asker, read(folder / "prompts.jsonl"), writer, tokens, _report)
    finally:
        engine.close()


@main.command()
@_folder
@_target
@click.option("--name", default="drafter", show_default=True, help="Folder of this run, in FOLDER.")
@click.option("--minutes", type=click.FloatRange(0), required=True, help="Of this call; 0 measures.")
@click.option("--layers", type=click.IntRange(1), default=1, show_default=True)
@click.option("--block-size", type=click.IntRange(2, 64), default=8, show_default=True)
@click.option("--mask", default="<empty_output>", show_default=True, help="The token of slots to be filled.")
@click.option("--short", type=click.IntRange(1), default=6144, show_default=True, help="Size of the short vocabulary.")
@click.option("--learning-rate", type=click.FloatRange(1e-6, 1.0), default=3e-3, show_default=True)
@click.option("--sequences", type=click.IntRange(1), default=8, show_default=True, help="Of a step.")
@click.option("--anchors", type=click.IntRange(1), default=48, show_default=True, help="Of a sequence.")
@click.option("--measured", type=click.IntRange(1), default=24, show_default=True, help="Held-out answers.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder to write the drafter's files into."
)
def drafter(
    folder: Path,
    target: Path,
    name: str,
    minutes: float,
    layers: int,
    block_size: int,
    mask: str,
    short: int,
    learning_rate: float,
    sequences: int,
    anchors: int,
    measured: int,
    threads: int,
    out: Path | None,
) -> None:
    """Train a drafter on FOLDER/answers, into FOLDER/NAME; it goes on where it stopped."""
    import torch

    from localdflash.train import kept_setup
    from localdflash.train.kept_training import Schedule

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    wanted = kept_setup.Wanted(layers, block_size, mask, short)
    schedule = Schedule(learning_rate=learning_rate, sequences=sequences, anchors=anchors, measured=measured)
    run, source = kept_setup.prepare(folder, target, folder / name, wanted, schedule, _report)
    if minutes:
        run.train(source, minutes, _report)
    else:
        _report(str(run.measure(source, measured)))
    if out:
        from localdflash.model.gguf_config import decoder_config
        from localdflash.train.kept_export import export
        from localdflash.weights.gguf import read_header

        export(run, folder / name, target, out, decoder_config(read_header(target)).num_hidden_layers)


if __name__ == "__main__":
    try:
        main(standalone_mode=False)
    except (LocaldflashError, click.ClickException) as error:
        sys.exit(f"localdflash: {error}")
    except KeyboardInterrupt:
        sys.exit("localdflash: interrupted; what was kept is there")
