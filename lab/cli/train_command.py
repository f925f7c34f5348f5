"""`localdflash train`: corpus, target, drafter, adapter, vocabulary. Each resumes in its folder."""

import sys
from pathlib import Path

import click

from localdflash.base.errors import UsageError
from localdflash.cli.output import say
from localdflash.lab.cli.train_adapter import adapter
from localdflash.lab.cli.train_drafter import drafter
from localdflash.lab.cli.training import (
    choose_device,
    device_option,
    folder_argument,
    minutes_option,
    seed_option,
    target_of,
    threads_option,
    tokenizer_of,
)


class OrderedGroup(click.Group):
    """Group that lists its commands in the order of their definition, in which users run them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(self.commands)


@click.group(cls=OrderedGroup)
def command() -> None:
    """Train a drafter for a model that you use (drafter --pair), a code adapter for SmolLM2 (adapter), or a pair of
    your own: corpus, target, drafter.

    All files are in FOLDER.
    """


@command.command()
@folder_argument
@click.option(
    "--vocab-size", type=click.IntRange(512, 16_384), default=6144, show_default=True, help="Tokens of the vocabulary."
)
@seed_option
def corpus(folder: Path, vocab_size: int, seed: int) -> int:
    """Download the pinned packages and write the token files. The only step that needs a network."""
    from localdflash.lab.train.dataset import build

    build(folder / "corpus", folder / "wheels", vocab_size, seed, say)
    return 0


@command.command()
@folder_argument
@minutes_option
@click.option("--hidden", type=click.IntRange(64), default=256, show_default=True, help="Size of the residual stream.")
@click.option("--layers", type=click.IntRange(5), default=6, show_default=True, help="Blocks of the target.")
@click.option("--mlp", type=click.IntRange(64), default=768, show_default=True, help="Inner size of the MLPs.")
@click.option("--batch-tokens", type=click.IntRange(2048), default=8192, show_default=True, help="Tokens of one step.")
@click.option(
    "--micro-tokens",
    type=click.IntRange(2048),
    default=2048,
    show_default=True,
    help="Tokens of one pass; fewer take less memory.",
)
@click.option(
    "--learning-rate", type=click.FloatRange(1e-6, 1.0), default=5e-3, show_default=True, help="Peak learning rate."
)
@device_option
@threads_option
@seed_option
def target(
    folder: Path,
    minutes: float,
    hidden: int,
    layers: int,
    mlp: int,
    batch_tokens: int,
    micro_tokens: int,
    learning_rate: float,
    device: str | None,
    threads: int,
    seed: int,
) -> int:
    """Train a Qwen3-shaped target and write FOLDER/target.gguf."""
    _check_sizes(hidden, mlp, batch_tokens, micro_tokens)
    training_device = choose_device(device, threads)
    from localdflash.lab.train import target_training as training
    from localdflash.lab.train.dataset import SPECIALS, Dataset
    from localdflash.lab.train.loop import TrainingBudget
    from localdflash.models.shapes.decoder_config import DecoderConfig

    tokenizer, data = tokenizer_of(folder), Dataset.load(folder / "corpus" / "train")
    held_out = training.held_out_rows(Dataset.load(folder / "corpus" / "held_out"))
    vocab_size = tokenizer.get_vocab_size() + len(SPECIALS)
    shape = DecoderConfig(vocab_size, hidden, layers, hidden // 64, max(1, hidden // 128), 64, mlp)
    run = training.TargetRun(shape, TrainingBudget(minutes, learning_rate, seed), batch_tokens, micro_tokens)
    model = training.train(run, data, folder / "target", training_device)
    loss = training.held_out_loss(model, held_out)
    print(f"\nheld-out loss {loss:.3f} nats a token", file=sys.stderr)
    from localdflash.lab.train.pair_export import write_target

    write_target(folder / "target.gguf", model, tokenizer, "localdflash embedded")
    return 0


command.add_command(drafter)
command.add_command(adapter)


@command.command(short_help="Choose the tokens that the drafter proposes from.")
@folder_argument
@click.option(
    "--size",
    type=click.IntRange(1),
    default=32_768,
    show_default=True,
    help="Number of tokens; fewer than the target has.",
)
@click.option(
    "--drafter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="GGUF or safetensors file of the drafter; by default those in FOLDER.",
)
def vocabulary(folder: Path, size: int, drafter: Path | None) -> int:
    """Choose the tokens that FOLDER/target.gguf writes most often in FOLDER/answers.

    They are written into the drafter's files. The drafter then proposes only these and reads less memory; answers
    do not change.
    """
    from localdflash.lab.train import shorten
    from localdflash.lab.train.shorten import count_answers
    from localdflash.models.shapes.gguf_config import decoder_config
    from localdflash.models.weights.gguf import read_header
    from localdflash.text.tokenizer import Tokenizer

    path = target_of(folder)
    header = read_header(path)
    vocab_size, drafters = decoder_config(header).vocab_size, [drafter] if drafter else shorten.drafters_in(folder)
    for file in drafters:
        shorten.check(file, header)
    short = count_answers(folder / "answers", vocab_size, size, Tokenizer.load(path).ends)
    for file in drafters:
        shorten.shorten(file, header, short.ids.tolist())
    say(f"{size:,} of {vocab_size:,} tokens cover {short.coverage:.2%} of {short.counted:,} in the answers")
    return 0


def _check_sizes(hidden: int, mlp: int, batch_tokens: int, micro_tokens: int) -> None:
    """Raise UsageError for sizes that attention, quantization or batching cannot use."""
    if hidden != 64 and hidden % 128:
        raise UsageError(f"--hidden {hidden}: expected 64 or a multiple of 128 (heads of 64, two of them to a key)")
    if mlp % 32:
        raise UsageError(f"--mlp {mlp}: expected a multiple of 32, the block of the quantization")
    if batch_tokens % micro_tokens:
        raise UsageError(f"--batch-tokens {batch_tokens}: expected a multiple of --micro-tokens {micro_tokens}")
