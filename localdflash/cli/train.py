"""`localdflash train`: corpus, target, drafter, vocabulary. Each writes into one folder and resumes where it
stopped.
"""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from localdflash.errors import TrainingError, UsageError

_folder = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
_device = click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="Where to train; by default cuda, if there is one."
)
_threads = click.option("--threads", type=click.IntRange(0, 1024), default=0, help="CPU threads; 0 lets torch choose.")
_minutes = click.option(
    "--minutes", type=click.FloatRange(0, min_open=True), required=True, help="Time to train, restarts included."
)
_seed = click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random.")


class Steps(click.Group):
    """A group that lists its commands in the order in which they are run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See click."""
        return list(self.commands)


@click.group(cls=Steps)
def command() -> None:
    """Train the embedded pair, or one of your own size, below FOLDER: corpus, then target, then drafter."""


@command.command()
@_folder
@click.option(
    "--vocab-size", type=click.IntRange(512, 16_384), default=6144, show_default=True, help="Tokens of the vocabulary."
)
@_seed
def corpus(folder: Path, vocab_size: int, seed: int) -> int:
    """Download the pinned packages and write the token files. The only step that needs a network."""
    _need("tokenizers")
    from localdflash.train.dataset import build

    build(folder / "corpus", folder / "wheels", vocab_size, seed, _report)
    return 0


@command.command()
@_folder
@_minutes
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
@click.option(
    "--quantization",
    type=click.Choice(["Q8_0", "Q4_0"]),
    default="Q8_0",
    show_default=True,
    help="Weight type of the GGUF file.",
)
@_device
@_threads
@_seed
def target(
    folder: Path,
    minutes: float,
    hidden: int,
    layers: int,
    mlp: int,
    batch_tokens: int,
    micro_tokens: int,
    learning_rate: float,
    quantization: str,
    device: str | None,
    threads: int,
    seed: int,
) -> int:
    """Train a Qwen3-shaped target and write FOLDER/target.gguf."""
    _check_sizes(hidden, mlp, batch_tokens, micro_tokens)
    chosen = _prepare(device, threads)
    from localdflash.model.decoder_config import DecoderConfig
    from localdflash.train import target as training
    from localdflash.train.dataset import Dataset
    from localdflash.train.loop import TrainingBudget

    tokenizer, data = _tokenizer(folder), Dataset.load(folder / "corpus" / "train")
    shape = DecoderConfig(_vocabulary(tokenizer), hidden, layers, hidden // 64, max(1, hidden // 128), 64, mlp)
    run = training.TargetRun(shape, TrainingBudget(minutes, learning_rate, seed), batch_tokens, micro_tokens)
    model = training.train(run, data, folder / "target", chosen)
    loss = training.held_out_loss(model, Dataset.load(folder / "corpus" / "held_out"))
    print(f"\nheld-out loss {loss:.3f} nats a token", file=sys.stderr)
    from localdflash.train.export import write_target

    write_target(folder / "target.gguf", model, tokenizer, quantization, "localdflash embedded")
    return 0


@command.command(short_help="Train a drafter on what FOLDER/target.gguf answers.")
@_folder
@_minutes
@click.option(
    "--tokens", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Tokens of answers to learn from."
)
@click.option("--layers", type=click.IntRange(1), default=3, show_default=True, help="Blocks of the drafter.")
@click.option(
    "--block-size", type=click.IntRange(2, 64), default=8, show_default=True, help="Slots of a draft, anchor included."
)
@click.option("--taps", default="1,3,4", show_default=True, help="Target blocks whose output the drafter reads.")
@click.option("--batch-tokens", type=click.IntRange(1024), default=4096, show_default=True, help="Tokens of one step.")
@click.option(
    "--learning-rate", type=click.FloatRange(1e-6, 1.0), default=3e-3, show_default=True, help="Peak learning rate."
)
@_device
@_threads
@_seed
def drafter(
    folder: Path,
    minutes: float,
    tokens: int,
    layers: int,
    block_size: int,
    taps: str,
    batch_tokens: int,
    learning_rate: float,
    device: str | None,
    threads: int,
    seed: int,
) -> int:
    """Let FOLDER/target.gguf answer prompts of the corpus and train a drafter on that.

    Writes drafter.gguf, and drafter.safetensors with config.json.
    """
    blocks = _block_numbers(taps)
    chosen = _prepare(device, threads)
    from localdflash.model.dflash_config import DFlashConfig, check_fit
    from localdflash.reference.gguf_decoder import load_decoder
    from localdflash.text.tokenizer import Tokenizer
    from localdflash.train import drafter as training
    from localdflash.train.dataset import Dataset, special_ids
    from localdflash.train.export import write_drafter, write_drafter_safetensors
    from localdflash.train.loop import TrainingBudget
    from localdflash.train.regenerate import regenerate

    tokenizer, path = _tokenizer(folder), _target_of(folder)
    model = load_decoder(path)
    mask = special_ids(tokenizer)["<|mask|>"]
    shape = replace(model.config, num_hidden_layers=layers)
    config = DFlashConfig(shape, block_size, mask, blocks)
    check_fit(config, shape.hidden_size, shape.vocab_size, model.config.num_hidden_layers, "--taps")
    answers = folder / "answers"
    if (answers / "examples.npy").exists():
        _report(f"going on with {answers} and {folder / 'drafter'}: move them away if {path.name} has changed since")
    else:
        ends = Tokenizer.load(path).ends
        regenerate(model.to(chosen), Dataset.load(folder / "corpus" / "train"), answers, tokens, ends, seed, _report)
    run = training.DrafterRun(config, TrainingBudget(minutes, learning_rate, seed), batch_tokens=batch_tokens)
    trained = training.train(run, model, Dataset.load(answers), folder / "drafter", chosen)
    write_drafter(folder / "drafter.gguf", trained, tokenizer, "F16", "localdflash embedded drafter")
    write_drafter_safetensors(folder / "drafter.safetensors", trained, model.config.num_hidden_layers)
    return 0


@command.command(short_help="Choose the tokens that the drafter proposes from.")
@_folder
@click.option(
    "--size",
    type=click.IntRange(1),
    default=32_768,
    show_default=True,
    help="How many tokens; fewer than the target has.",
)
@click.option(
    "--drafter",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="GGUF or safetensors file of the drafter; by default those in FOLDER.",
)
def vocabulary(folder: Path, size: int, drafter: Path | None) -> int:
    """Choose the tokens that FOLDER/target.gguf writes most often in FOLDER/answers.

    They are written into the drafter's files. It proposes from them alone then and reads less memory; answers stay
    the same.
    """
    _need("tokenizers")
    from localdflash.model.gguf_config import decoder_config
    from localdflash.text.tokenizer import Tokenizer
    from localdflash.train import shorten
    from localdflash.train.vocabulary import count_answers
    from localdflash.weights.gguf import read_header

    path = _target_of(folder)
    header = read_header(path)
    vocab_size, drafters = decoder_config(header).vocab_size, [drafter] if drafter else shorten.drafters_in(folder)
    for file in drafters:
        shorten.check(file, header)
    short = count_answers(folder / "answers", vocab_size, size, Tokenizer.load(path).ends)
    for file in drafters:
        shorten.shorten(file, header, short.ids.tolist())
    _report(f"{size:,} of {vocab_size:,} tokens cover {short.coverage:.2%} of {short.counted:,} in the answers")
    return 0


def _target_of(folder: Path) -> Path:
    path = folder / "target.gguf"
    if not path.is_file():
        raise TrainingError(f"{path} is missing: run `localdflash train target {folder}` first")
    return path


def _check_sizes(hidden: int, mlp: int, batch_tokens: int, micro_tokens: int) -> None:
    """Check before hours of training, not after them, that the sizes suit attention and quantization."""
    if hidden != 64 and hidden % 128:
        raise UsageError(f"--hidden {hidden}: expected 64 or a multiple of 128 (heads of 64, two of them to a key)")
    if mlp % 32:
        raise UsageError(f"--mlp {mlp}: expected a multiple of 32, the block of the quantization")
    if batch_tokens % micro_tokens:
        raise UsageError(f"--batch-tokens {batch_tokens}: expected a multiple of --micro-tokens {micro_tokens}")


def _block_numbers(taps: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", taps):
        raise UsageError(f"--taps {taps!r}: expected block numbers with commas, for example 1,3,4")
    return tuple(int(tap) for tap in taps.split(","))


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _need(module: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise TrainingError(f"training needs the package {module!r}: run `pip install 'localdflash[train]'`")


def _prepare(device: str | None, threads: int) -> str:
    _need("tokenizers")
    _need("matplotlib")
    import torch

    if threads:
        torch.set_num_threads(threads)
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device cuda: torch finds no NVIDIA GPU here; use --device cpu")
    return chosen


def _tokenizer(folder: Path) -> Any:
    from tokenizers import Tokenizer

    path = folder / "corpus" / "tokenizer.json"
    if not path.is_file():
        raise TrainingError(f"{path} is missing: run `localdflash train corpus {folder}` first")
    return Tokenizer.from_file(str(path))


def _vocabulary(tokenizer: Any) -> int:
    from localdflash.train.dataset import SPECIALS

    return int(tokenizer.get_vocab_size()) + len(SPECIALS)
