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
        help="Id of a pair, path of a .gguf file, or hf:owner/name/file.gguf.",
        **more,
    )


_RUN = (
    click.option(
        "--drafter",
        metavar="SPEC",
        default="",
        shell_complete=shell_completion.file,
        help="Use another drafter: a path or hf:owner/name/file. DFlash drafters; with llama.cpp also EAGLE-3,"
        " or any small GGUF model with the same vocabulary.",
    ),
    _setting(
        "--backend",
        "model.backend",
        "Backend. auto: cuda if it can run the pair, else llama.cpp on a GPU, else cpu or llama.cpp,"
        " whichever is faster on this machine. torch is the reference implementation.",
        type=click.Choice(BACKENDS),
    ),
    _setting("--threads", "model.threads", "CPU threads; 0: chosen by the backend.", type=click.IntRange(0, 1024)),
    _setting(
        "--context",
        "model.context",
        "Context length in tokens; 0: the trained context length.",
        type=click.IntRange(0),
    ),
    _setting(
        "--device",
        "model.device",
        "Device. auto: the first GPU that holds the pair (llama.cpp: at least half of it), else cpu. gpu:"
        " the best GPU. Or a GPU by number, name or UUID (cuda backend), or by its llama.cpp name.",
    ),
    _setting(
        "--gpu-layers",
        "model.gpu_layers",
        "Layers that llama.cpp computes on the GPU; -1: as many as fit.",
        type=click.IntRange(-1),
    ),
    _setting(
        "--rows",
        "model.rows",
        "Batch widths of the llama.cpp backend. exact: drafting never changes a token. fast: no guarantee. auto: exact"
        " if its cost is low.",
        type=click.Choice(ROWS_MODES),
    ),
    _setting(
        "--kv",
        "model.kv",
        "KV cache type: int8 (cpu, cuda) and fp8 (cuda, RTX 40 or newer) use about half the memory of f16.",
        type=click.Choice(KV_FORMATS),
    ),
    _setting(
        "--drafter-bits",
        "model.drafter_bits",
        "Bits per drafter weight on the cpu and cuda backends; 4 is faster but slightly less accurate.",
        type=click.Choice(DRAFTER_BITS),
    ),
    click.option(
        "--native-fp4",
        is_flag=True,
        help="Use FP4 activations for FP4 weights on Blackwell RTX; changes the text, with or without drafting.",
    ),
)
_SAMPLING: tuple[tuple[str, type, str], ...] = (
    (
        "temperature",
        float,
        "Sampling temperature; 0 is greedy decoding. Default: 0, or the recommendation of the chat model.",
    ),
    ("top_k", int, "Sample from the k most likely tokens; 0: all tokens."),
    ("top_p", float, "Sample from the most likely tokens up to this cumulative probability."),
    ("min_p", float, "Drop tokens below this probability relative to the most likely token."),
    ("repetition_penalty", float, "Penalty for repeated tokens; values above 1 reduce repetition."),
    ("seed", int, "Random seed, for reproducible sampling."),
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
        "--no-daemon", is_flag=True, help="Load the pair in a private engine instead of the shared engine."
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
