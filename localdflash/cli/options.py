"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from localdflash.engine.sampling import SamplingParams

Command = TypeVar("Command", bound=Callable[..., Any])

_PAIR = (
    click.option("--pair", default="embedded", show_default=True, help="A pair of the registry, or a .gguf file."),
    click.option(
        "--backend",
        type=click.Choice(["auto", "cuda", "llama.cpp", "torch"]),
        default="auto",
        show_default=True,
        help="What runs the pair: auto is cuda where that can run it, else llama.cpp; torch is the readable reference.",
    ),
    click.option("--threads", type=click.IntRange(0, 1024), default=0, help="CPU threads; 0 lets the backend choose."),
    click.option(
        "--context", type=click.IntRange(0), default=0, help="Tokens of context; 0 is what the model was trained for."
    ),
    click.option(
        "--kv",
        type=click.Choice(["f16", "int8", "fp8"]),
        default="f16",
        show_default=True,
        help="Keys and values of the cuda backend; int8 and fp8 hold nearly twice the context, fp8 from RTX 40 on.",
    ),
    click.option(
        "--drafter-bits",
        type=click.Choice([8, 4]),
        default=8,
        show_default=True,
        help="To what the cuda backend quantizes the weights of a safetensors drafter.",
    ),
    click.option(
        "--native-fp4",
        is_flag=True,
        help="Multiply FP4 weights by FP4 activations on Blackwell RTX: another text than without, drafted or not.",
    ),
)
_SAMPLING = (
    click.option(
        "--temperature", type=float, default=0.0, show_default=True, help="0 always takes the likeliest token."
    ),
    click.option("--top-k", type=int, default=0, help="Keep the k likeliest tokens; 0 keeps all."),
    click.option("--top-p", type=float, default=1.0, help="Keep the likeliest tokens up to this total probability."),
    click.option("--min-p", type=float, default=0.0, help="Keep tokens at least this likely, relative to the best."),
    click.option("--repetition-penalty", type=float, default=1.0, help="Above 1 makes repeating less likely."),
    click.option("--seed", type=int, default=None, help="Makes a sampled answer repeatable."),
)


def pair_options(command: Command) -> Command:
    """Which pair to run, and how: pair, backend, threads, context, kv, drafter bits, FP4 mode."""
    for option in reversed(_PAIR):
        command = option(command)
    return command


def sampling_options(command: Command) -> Command:
    """How to draw tokens: the fields of `SamplingParams`."""
    for option in reversed(_SAMPLING):
        command = option(command)
    return command


def sampling(
    temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float, seed: int | None
) -> SamplingParams:
    """The parameters that these options give."""
    return SamplingParams(temperature, top_k, top_p, min_p, repetition_penalty, seed=seed)
