"""Options that several commands share."""

import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from localdflash.cli import shell_completion
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.backend_names import BACKENDS, ROWS_MODES
from localdflash.models.config import DRAFTER_BITS, KV_FORMATS, load_config
from localdflash.models.registry import defaults
from localdflash.server.engine_spec import EngineSpec, PairRole

Command = TypeVar("Command", bound=Callable[..., Any])


def _setting(option: str, name: str, help_text: str, **more: Any) -> Callable[[Command], Command]:
    """Return an option whose default is a setting, read when the option was not given; `--help` names the setting."""
    return click.option(
        option,
        default=lambda: operator.attrgetter(name)(load_config()),
        show_default=f"setting {name}",
        help=help_text,
        **more,
    )


def _pair(shown: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(
        "--pair",
        show_default=shown,
        shell_complete=shell_completion.pairs,
        help="A pair of the registry, a .gguf file, or hf:owner/name/file.gguf.",
        **more,
    )


_RUN = (
    click.option(
        "--drafter",
        metavar="SPEC",
        default="",
        shell_complete=shell_completion.file,
        help="Another drafter than the pair's: a path or hf:owner/name/file. DFlash and its kin; in llama.cpp EAGLE-3,"
        " or any small GGUF model of the same vocabulary.",
    ),
    _setting(
        "--backend",
        "model.backend",
        "What runs the pair: auto is cuda where that can run it, else llama.cpp on a GPU, else cpu or llama.cpp,"
        " whichever is faster here; torch is the readable reference.",
        type=click.Choice(BACKENDS),
    ),
    _setting("--threads", "model.threads", "CPU threads; 0 lets the backend choose.", type=click.IntRange(0, 1024)),
    _setting(
        "--context",
        "model.context",
        "Tokens of context; 0 is what the model was trained for.",
        type=click.IntRange(0),
    ),
    _setting(
        "--device",
        "model.device",
        "Where it is computed: auto is the first GPU that holds the pair, or by llama.cpp half of it, else cpu; gpu is"
        " the best GPU; or one by its number, name or UUID for the cuda backend, by llama.cpp's name for that.",
    ),
    _setting(
        "--gpu-layers",
        "model.gpu_layers",
        "Layers that llama.cpp computes on the GPU; -1 is what fits.",
        type=click.IntRange(-1),
    ),
    _setting(
        "--rows",
        "model.rows",
        "Rows of the llama.cpp backend: exact certifies that drafts change no token, fast does not care; auto is exact"
        " where that costs little.",
        type=click.Choice(ROWS_MODES),
    ),
    _setting(
        "--kv",
        "model.kv",
        "Type of the KV cache: int8 (backends cpu and cuda) and fp8 (cuda, from RTX 40 on) take about half the memory.",
        type=click.Choice(KV_FORMATS),
    ),
    _setting(
        "--drafter-bits",
        "model.drafter_bits",
        "Bits of a drafter's matrices on the cpu and cuda backends: 4 is faster, and accepts a little less.",
        type=click.Choice(DRAFTER_BITS),
    ),
    click.option(
        "--native-fp4",
        is_flag=True,
        help="Multiply FP4 weights by FP4 activations on Blackwell RTX; changes the text, drafted or not.",
    ),
)
_SAMPLING: tuple[tuple[str, type, str], ...] = (
    (
        "temperature",
        float,
        "Randomness of sampling; 0, the default but where a chat's model has one, always takes the likeliest token.",
    ),
    ("top_k", int, "Keep the k likeliest tokens; 0 keeps all."),
    ("top_p", float, "Keep the likeliest tokens up to this total probability."),
    ("min_p", float, "Keep tokens at least this likely, relative to the best."),
    ("repetition_penalty", float, "Above 1 makes repeating less likely."),
    ("seed", int, "Makes a sampled answer repeatable."),
)


def pair_options(command: Command) -> Command:
    """Add the options that say which pair to run, and how: pair, drafter, backend, threads, context and more."""
    return _pair("setting model.pair", default=lambda: load_config().model.pair)(_run_options(command))


def chat_pair_options(command: Command) -> Command:
    """Add the same options with the chat's pair, None where it is not given: see `requested_engine`."""
    return _pair(f"setting chat.pair, else model.pair, else {defaults.CHAT} where it is here")(_run_options(command))


def completion_pair_options(command: Command) -> Command:
    """Add the same options with the pair of completions, None where it is not given: see `requested_engine`."""
    return _pair(f"setting completion.pair, else model.pair, else {defaults.CODE} where it is here")(
        _run_options(command)
    )


def _run_options(command: Command) -> Command:
    for option in reversed(_RUN):
        command = option(command)
    return command


def daemon_option(command: Command) -> Command:
    """Add the option to load a pair for this command alone instead of asking the shared engine."""
    return click.option(
        "--no-daemon", is_flag=True, help="Load the pair for this command alone; do not use the shared engine."
    )(command)


def sampling_options(command: Command) -> Command:
    """Add the options that say how tokens are drawn: the fields of `SamplingParams`, None where they are not given."""
    for name, kind, about in reversed(_SAMPLING):
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=about)(command)
    return command


def take_sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Remove the sampling options from a command's, and return those that were given, by field of `SamplingParams`,
    checked; what stays is for `localdflash.loading.load_pair.Options`.
    """
    taken = {name: options.pop(name) for name, _, _ in _SAMPLING}
    found = {name: value for name, value in taken.items() if value is not None}
    SamplingParams(**found)
    return found


def requested_engine(ctx: click.Context, options: dict[str, Any], role: PairRole | None = None) -> EngineSpec:
    """Return the engine that a command's pair options ask for; those given on the command line must hold.

    `role`: what the pair is for; the pair of another role stays as it is. The default pair of a role is looked up in
    the registry only if the engine has none.
    """
    options = {**options, "drafter": _absolute_path(options["drafter"])}
    if options["pair"] is None:
        del options["pair"]
    else:
        options["pair"] = _absolute_pair(options["pair"])
    default = defaults.chat_pair if role == "chat" else defaults.completion_pair
    return EngineSpec(
        options,
        given(ctx, options),
        load_config().server.idle_minutes,
        role,
        lambda: _absolute_pair(default(load_config())),
    )


def given(ctx: click.Context, options: dict[str, Any]) -> set[str]:
    """Return the names of the options that stand on the command line."""
    return {name for name in options if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}


def _absolute_pair(pair: str) -> str:
    """The name of a pair as a process in another folder would need it; without a suffix or a folder it is an id."""
    is_path = pair.endswith((".gguf", ".safetensors")) or "/" in pair or os.sep in pair
    return _absolute_path(pair) if is_path else pair


def _absolute_path(path: str) -> str:
    """Return the name of a drafter, which may be a folder beside the user."""
    return path if not path or path.startswith("hf:") else str(Path(path).expanduser().absolute())
