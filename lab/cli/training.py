"""Options and checks that the commands of `localdflash train` share."""

import re
from pathlib import Path
from typing import Any

import click

from localdflash.base import extras
from localdflash.base.errors import TrainingError, UsageError

folder_argument = click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
device_option = click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="Where to train; by default cuda, if there is one."
)
threads_option = click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="CPU threads; 0 lets torch choose."
)
minutes_option = click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    required=True,
    help="Training time of all calls together; of `drafter --pair`, of this call alone.",
)
prepare_option = click.option(
    "--prepare", is_flag=True, help="Only download and tokenize: FOLDER can then be trained on without a network."
)
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random."
)


def target_of(folder: Path) -> Path:
    """Return the path of the target that `train target` wrote; TrainingError without it."""
    path = folder / "target.gguf"
    if not path.is_file():
        raise TrainingError(f"{path}: missing; run `localdflash train target {folder}` first")
    return path


def parse_taps(taps: str) -> tuple[int, ...]:
    """Parse `--taps`, comma-separated numbers of transformer layers; UsageError if malformed."""
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", taps):
        raise UsageError(f"--taps {taps!r}: expected block numbers with commas, for example 1,3,4")
    return tuple(int(tap) for tap in taps.split(","))


def choose_device(device: str | None, threads: int) -> str:
    """Set torch's thread count and return the device: `device`, by default "cuda" if there is a GPU, else "cpu".

    Raises an error if the training packages are not installed, or TrainingError if "cuda" is requested without a GPU.
    """
    extras.require("train", "training")
    import torch

    if threads:
        torch.set_num_threads(threads)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device cuda: torch finds no NVIDIA GPU here; use --device cpu")
    return device


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer that `train corpus` wrote; TrainingError without it."""
    from tokenizers import Tokenizer

    path = folder / "corpus" / "tokenizer.json"
    if not path.is_file():
        raise TrainingError(f"{path}: missing; run `localdflash train corpus {folder}` first")
    return Tokenizer.from_file(str(path))
