"""`localdflash train drafter`: train for the target that `train target` wrote into FOLDER, or for any --pair."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from localdflash.base.errors import UsageError
from localdflash.cli.output import say
from localdflash.lab.cli.progress_line import ProgressLine
from localdflash.lab.cli.training import (
    choose_device,
    device_option,
    folder_argument,
    minutes_option,
    parse_taps,
    prepare_option,
    seed_option,
    target_of,
    threads_option,
    tokenizer_of,
)
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.text.fim_formats import FimFormat

PAIR_OPTIONS = (
    "prompts",
    "repository",
    "my_chats",
    "completions",
    "start",
    "fresh",
    "short",
    "first_slot",
    "mask",
    "backend",
    "prepare",
    "sequences",
    "anchors",
)
SHAPE_OPTIONS = ("layers", "block_size", "taps", "first_slot", "mask")  # fixed when training starts from a drafter
QUESTION_OPTIONS = ("prompts", "repository", "my_chats")
FOLDER_OPTIONS = ("batch_tokens",)  # only without --pair; PAIR_OPTIONS only with it
DEFAULT_TAPS = "1,3,4"  # target layers whose hidden states the drafter reads
RATE, CONTINUED_RATE = 3e-3, 3e-4  # peak learning rates; RATE would make an already trained drafter forget
SEQUENCES, COMPLETION_SEQUENCES = 4, 16  # per step; a completion has about a tenth of a chat answer's tokens
MEASURED_COMPLETIONS = 240  # number of held-out completions in a measurement
IN_PROMPT = 12  # anchors (positions where drafts start) in a completion's prompt, which is ten times as long


@click.command(short_help="Train a drafter on a target's answers.")
@folder_argument
@minutes_option
@click.option(
    "--pair", metavar="PAIR", help="The target: a pair of the registry, a .gguf file, hf:owner/name/file.gguf."
)
@click.option(
    "--tokens", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Tokens of answers to learn from."
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of questions, one JSON object per line.",
)
@click.option(
    "--repository",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Use questions about its Python files.",
)
@click.option("--my-chats", is_flag=True, help="Use the questions of your chats; they stay on this machine.")
@click.option("--completions", is_flag=True, help="Use code completions in pinned packages instead of questions.")
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start a new run from this drafter instead of the pair's.",
)
@click.option(
    "--fresh", is_flag=True, help="Start a new run from the target's last blocks instead of the pair's drafter."
)
@click.option("--layers", type=click.IntRange(1), help="Blocks of the drafter; by default 3, with --pair 1.")
@click.option(
    "--block-size", type=click.IntRange(2, 64), default=8, show_default=True, help="Slots of a draft, anchor included."
)
@click.option(
    "--taps", help=f"Target blocks whose output is read; by default {DEFAULT_TAPS}, with --pair five, spread."
)
@click.option(
    "--short",
    type=click.IntRange(1),
    default=6144,
    show_default=True,
    help="Size of the short vocabulary; if given, it is chosen anew even if the initial drafter has one.",
)
@click.option(
    "--first-slot",
    type=click.Choice(["anchor", "mask"]),
    default="anchor",
    show_default=True,
    help="The first slot that proposes. llama-server supports only `mask`.",
)
@click.option("--mask", metavar="TOKEN", help="Special token of the slots to fill; by default an unused one.")
@click.option(
    "--backend",
    type=click.Choice(["cpu", "llama.cpp"]),
    help="Backend that runs the target; by default torch on a GPU, else cpu.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1),
    help=f"Answers per step; by default {SEQUENCES}, with --completions {COMPLETION_SEQUENCES}.",
)
@click.option("--anchors", type=click.IntRange(1), default=40, show_default=True, help="Anchors per answer.")
@click.option("--batch-tokens", type=click.IntRange(1024), default=4096, show_default=True, help="Tokens of one step.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(1e-6, 1.0),
    help=f"Peak learning rate; by default {RATE:g}, {CONTINUED_RATE:g} to continue from a drafter.",
)
@prepare_option
@device_option
@threads_option
@seed_option
@click.pass_context
def drafter(ctx: click.Context, /, folder: Path, pair: str | None, **options: Any) -> int:
    """Train a drafter and write it into FOLDER, as GGUF and as safetensors. A run that is in FOLDER continues.

    With --pair the target first answers prompts: questions about pinned packages, or of --prompts, --repository and
    --my-chats, or with --completions code completions. Afterwards,
    `localdflash chat --pair FOLDER/target.gguf` uses the drafter.
    Without --pair the target is FOLDER/target.gguf, which `train target` wrote.
    """
    for name in FOLDER_OPTIONS if pair else PAIR_OPTIONS:
        if _is_given(ctx, name):
            raise UsageError(f"--{name.replace('_', '-')}: only {'without' if pair else 'with'} --pair")
    if pair:
        _for_pair(folder, pair, options, [name for name in (*SHAPE_OPTIONS, "short") if _is_given(ctx, name)])
    else:
        _for_folder(folder, options)
    return 0


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _for_pair(folder: Path, pair: str, options: dict[str, Any], given: list[str]) -> None:
    """Train a drafter for a pair's target. `given` names the shape options and `short` if the user gave them."""
    for name in QUESTION_OPTIONS:
        if options["completions"] and options[name]:
            raise UsageError(f"--{name.replace('_', '-')} cannot be combined with --completions")
    if options["start"] and options["fresh"]:
        raise UsageError("--start and --fresh: choose one")
    device = choose_device(options["device"], options["threads"])
    from localdflash.lab.train import drafter_stages
    from localdflash.lab.train.drafter_run import Schedule
    from localdflash.lab.train.drafter_setup import DrafterOptions
    from localdflash.lab.train.loop import TrainingBudget

    files = _files(pair)
    start = options["start"] or (None if options["fresh"] else files.drafter_safetensors or files.drafter_gguf)
    rate = options["learning_rate"] or (CONTINUED_RATE if start else RATE)
    budget = TrainingBudget(options["minutes"], rate, options["seed"])
    if start and (shape := [name for name in given if name in SHAPE_OPTIONS]):
        option = shape[0].replace("_", "-")
        reason = "--start names a drafter" if options["start"] else f"{pair} has a drafter; add --fresh"
        raise UsageError(f"--{option}: only for a new drafter, but {reason}")
    from_anchor = options["first_slot"] == "anchor"
    layers, own_short = options["layers"] or 1, "short" in given
    drafter_options = DrafterOptions(
        layers, options["block_size"], options["short"], options["mask"], start, from_anchor, own_short
    )
    taps = None if options["taps"] is None else parse_taps(options["taps"])
    backend, threads, fim = options["backend"], options["threads"], _fim_of(files) if options["completions"] else None
    work = drafter_stages.DrafterWork(
        folder, files.target, drafter_options, options["tokens"], budget.minutes, taps, backend, threads, fim, device
    )
    meter = ProgressLine()
    sources, make_prompts = (
        _completions(folder, files.target, fim, options, meter) if fim else _questions(folder, options)
    )
    drafter_stages.check_sources(folder, sources)
    if options["prepare"]:
        drafter_stages.write_prompts(folder, sources, make_prompts, meter)
        meter.say(f"prepared: copy {folder / drafter_stages.PROMPTS} and {drafter_stages.SOURCES} to train elsewhere")
        return
    needs = drafter_stages.check_and_plan(work)
    meter.say(needs.line())
    if options["my_chats"]:
        meter.say(f"your questions and their answers are stored in {folder}, only on this machine")
    drafter_stages.write_prompts(folder, sources, make_prompts, meter)
    drafter_stages.answer(work, needs.sequences, meter)
    sequences, measured = (COMPLETION_SEQUENCES, MEASURED_COMPLETIONS) if fim else (SEQUENCES, Schedule.measured)
    anchors, in_prompt = options["anchors"], IN_PROMPT if fim else 0
    schedule = Schedule(rate, options["sequences"] or sequences, anchors, in_prompt, measured=measured)
    drafter_stages.train(work, schedule, meter)
    subcommand = "complete FILE:LINE:COLUMN" if fim else "chat"
    meter.say(f"use it: localdflash {subcommand} --pair {folder / 'target.gguf'}")


def _files(pair: str) -> LocalPair:
    """Return the files of the target and of its drafter, if it has one."""
    from localdflash.models.registry.registry import load_registry, local_files

    return local_files(load_registry().resolve(pair))


def _fim_of(files: LocalPair) -> FimFormat:
    """Return the target's FIM format; UsageError if it has no marker before the middle."""
    from localdflash.text.fim_formats import detect, format_of
    from localdflash.text.tokenizer import Tokenizer

    fim = format_of(files.fim) if files.fim else detect(Tokenizer.load(files.target))
    if not fim.middle:
        raise UsageError(f"--completions: the format {fim.name!r} has no marker before the middle")
    return fim


def _questions(folder: Path, options: dict[str, Any]) -> tuple[list[str], Any]:
    """Return the names of the prompt sources, and a function that yields the questions."""
    from itertools import chain

    from localdflash.cli.chat_command import chats_file
    from localdflash.lab.train import own_prompts
    from localdflash.lab.train import training_prompts as making

    seed = options["seed"]
    makers: dict[str, Any] = {}
    if path := options["prompts"]:
        makers[str(path.absolute())] = lambda: own_prompts.of_file(path)
    if repository := options["repository"]:
        makers[str(repository.absolute())] = lambda: own_prompts.of_repository(repository.absolute(), seed)
    if options["my_chats"]:
        makers["my chats"] = lambda: own_prompts.of_chats(chats_file())
    if not makers:
        makers["packages"] = lambda: making.of_corpus(folder / "wheels", seed)
    return list(makers), lambda: chain.from_iterable(make() for make in makers.values())


def _completions(
    folder: Path, target: Path, fim: FimFormat, options: dict[str, Any], meter: ProgressLine
) -> tuple[list[str], Any]:
    """Return the names of the prompt sources, and a function that yields the FIM prompts."""
    from localdflash.lab.train import completion_prompts as making

    tokens, seed = options["tokens"], options["seed"]
    return ["completions"], lambda: making.of_corpus(folder, target, fim, tokens, seed, meter)


def _for_folder(folder: Path, options: dict[str, Any]) -> None:
    blocks = parse_taps(DEFAULT_TAPS if options["taps"] is None else options["taps"])
    device = choose_device(options["device"], options["threads"])
    from localdflash.backends.reference.gguf_decoder import load_decoder
    from localdflash.lab.train import drafter_training as training
    from localdflash.lab.train.dataset import Dataset, special_ids
    from localdflash.lab.train.loop import TrainingBudget
    from localdflash.lab.train.pair_export import write_drafter, write_drafter_safetensors
    from localdflash.lab.train.regenerate import regenerate
    from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
    from localdflash.text.tokenizer import Tokenizer

    tokenizer, path = tokenizer_of(folder), target_of(folder)
    model = load_decoder(path)
    mask = special_ids(tokenizer)["<|mask|>"]
    shape = replace(model.config, num_hidden_layers=options["layers"] or 3)
    config = DFlashConfig(shape, options["block_size"], mask, blocks)
    check_fit(config, shape.hidden_size, shape.vocab_size, model.config.num_hidden_layers, "--taps")
    answers, seed = folder / "answers", options["seed"]
    if (answers / "examples.npy").exists():
        say(f"continuing with {answers} and {folder / 'drafter'}; move them away if {path.name} has changed since")
    else:
        ends = Tokenizer.load(path).ends
        data = Dataset.load(folder / "corpus" / "train")
        regenerate(model.to(device), data, answers, options["tokens"], ends, seed, say)
    budget = TrainingBudget(options["minutes"], options["learning_rate"] or RATE, seed)
    run = training.DrafterRun(config, budget, batch_tokens=options["batch_tokens"])
    trained = training.train(run, model, Dataset.load(answers), folder / "drafter", device)
    write_drafter(folder / "drafter.gguf", trained, tokenizer, "F16", "localdflash embedded drafter")
    write_drafter_safetensors(folder / "drafter.safetensors", trained, model.config.num_hidden_layers)
