"""Command-line options that several commands share."""

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from localdflash.base.files.typed_paths import absolute_pair, absolute_spec
from localdflash.cli import shell_completion
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.backend_names import BACKENDS, ROWS_MODES
from localdflash.models.config import DRAFTER_BITS, KV_FORMATS, load_config
from localdflash.models.registry import defaults
from localdflash.server.engine_spec import EngineSpec, PairRole

Command = TypeVar("Command", bound=Callable[..., Any])


def _setting(name: str, help_text: str, **more: Any) -> Callable[[Command], Command]:
    """Return an option whose default is the setting `model.NAME`. The setting is read only if the default is needed."""
    default = lambda: getattr(load_config().model, name)  # noqa: E731
    option, default_text = f"--{name.replace('_', '-')}", f"setting model.{name}"
    return click.option(option, default=default, show_default=default_text, help=help_text, **more)


_RUN_OPTIONS = (
    click.option(
        "--drafter",
        metavar="SPEC",
        default="",
        shell_complete=shell_completion.file,
        help="Use another DFlash drafter: a path or hf:owner/name/file.",
    ),
    _setting(
        "backend",
        "Backend. auto: cuda if it can run the pair, else llama.cpp on a GPU, else cpu or llama.cpp,"
        " whichever is faster on this machine. torch is the reference implementation.",
        type=click.Choice(BACKENDS),
    ),
    _setting("threads", "CPU threads; 0: chosen by the backend.", type=click.IntRange(0, 1024)),
    _setting("context", "Context length in tokens; 0: the trained context length.", type=click.IntRange(0)),
    _setting(
        "device",
        "Device. auto: the first GPU that holds the pair (llama.cpp: at least half of it), else cpu. gpu:"
        " the best GPU. Or a GPU by number, name or UUID (cuda backend), or by its llama.cpp name.",
    ),
    _setting("gpu_layers", "Layers that llama.cpp computes on the GPU; -1: all that fit.", type=click.IntRange(-1)),
    _setting(
        "rows",
        "Batch widths of the llama.cpp backend. exact: drafting never changes a token. fast: no guarantee. auto: exact"
        " if its cost is low.",
        type=click.Choice(ROWS_MODES),
    ),
    _setting(
        "kv",
        "KV cache type. int8 and fp8 (cuda, RTX 40 or newer) take about half the memory of f16; k8v4 (cpu, llama.cpp on"
        " the processor), keys in 8 bits and values in 4, takes 42 %. auto: f16, or on the CPU engine what the pair's"
        " registry entry says.",
        type=click.Choice(KV_FORMATS),
    ),
    _setting(
        "drafter_bits",
        "Bits per drafter weight on the cpu and cuda backends; 4 is faster but slightly less accurate.",
        type=click.Choice(DRAFTER_BITS),
    ),
    click.option("--native-fp4", is_flag=True, help="FP4 activations for FP4 weights on Blackwell; changes the text."),
)
_SAMPLING: tuple[tuple[str, type, str], ...] = (
    (
        "temperature",
        float,
        "Sampling temperature; 0 is greedy decoding. Default: 0, or the chat model's recommendation.",
    ),
    ("top_k", int, "Sample from the k most likely tokens; 0: all tokens."),
    ("top_p", float, "Sample from the most likely tokens up to this cumulative probability."),
    ("min_p", float, "Drop tokens below this probability relative to the most likely token."),
    ("repetition_penalty", float, "Penalty for repeated tokens; values above 1 reduce repetition."),
    ("seed", int, "Random seed, for reproducible sampling."),
)


def _all_of(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds several options, listed in this order in `--help`."""
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


def _pair_options(default_text: str, **more: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds --pair and the options that run a pair."""
    pair = click.option(
        "--pair",
        show_default=default_text,
        shell_complete=shell_completion.pairs,
        help="Id of a pair, path of a .gguf file, or hf:owner/name/file.gguf.",
        **more,
    )
    return _all_of(pair, *_RUN_OPTIONS)


pair_options = _pair_options("setting model.pair", default=lambda: load_config().model.pair)
# With the next two, `pair` is None if the user did not give --pair; `requested_engine` chooses the pair then.
chat_pair_options = _pair_options(f"setting chat.pair, else model.pair, else {defaults.CHAT} if it is downloaded")
completion_pair_options = _pair_options(
    f"setting completion.pair, else model.pair, else {defaults.CODE} if it is downloaded"
)
no_draft_option = click.option(
    "--no-draft", is_flag=True, help="Disable drafting, for comparison; the text is identical. Uses a private process."
)
daemon_option = click.option(
    "--no-daemon", is_flag=True, help="Load the pair in a private process instead of the shared daemon."
)
sampling_options = _all_of(
    *(click.option(f"--{name.replace('_', '-')}", type=kind, help=about) for name, kind, about in _SAMPLING)
)


def take_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling options from `options`; return those that the user gave, or raise UsageError if invalid."""
    sampling = {name: value for name, _, _ in _SAMPLING if (value := options.pop(name)) is not None}
    SamplingParams(**sampling)
    return sampling


def requested_engine(ctx: click.Context, options: dict[str, Any], role: PairRole | None = None) -> EngineSpec:
    """Return the daemon that pair options request. A running daemon must have the options that the user gave."""
    options = {**options, "drafter": absolute_spec(options["drafter"])}
    if options["pair"] is None:
        del options["pair"]
    else:
        options["pair"] = absolute_pair(options["pair"])
    default = defaults.chat_pair if role == "chat" else defaults.completion_pair
    return EngineSpec(
        options,
        given_options(ctx, options),
        load_config().server.idle_minutes,
        role,
        lambda: absolute_pair(default(load_config())),
    )


def given_options(ctx: click.Context, options: dict[str, Any]) -> set[str]:
    """Return the names of the options that were given on the command line."""
    return {name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
