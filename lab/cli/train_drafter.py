"""`localdflash train drafter`: for the target that was trained in FOLDER, or with --pair for any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from localdflash.base.errors import UsageError
from localdflash.cli.output import say
from localdflash.lab.cli.progress_line import ProgressLine
from localdflash.lab.cli.training import (
    block_numbers,
    device_option,
    folder_argument,
    minutes_option,
    prepare,
    seed_option,
    target_of,
    threads_option,
    tokenizer_of,
)
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.text.fim_formats import FimFormat

OF_A_PAIR = (
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
    "sequences",
    "anchors",
)
SHAPE = ("layers", "block_size", "taps", "first_slot", "mask")  # what a drafter to start from has already
OF_QUESTIONS = ("prompts", "repository", "my_chats")
OF_FOLDER = ("batch_tokens", "device")
FOLDERS_TAPS = "1,3,4"
RATE, RATE_OF_MORE = 3e-3, 3e-4  # the first one makes a trained drafter forget
SEQUENCES, SEQUENCES_OF_COMPLETIONS = 4, 16  # a completion has a tenth of an answer's tokens
MEASURED_COMPLETIONS = 240  # held-out ones
IN_PROMPT = 12  # drafts in the code around a completion, of which there is ten times as much


@click.command(short_help="Train a drafter on what a target answers.")
@folder_argument
@minutes_option
@click.option(
    "--pair", metavar="PAIR", help="The target: a pair of the registry, a .gguf file, hf:owner/name/file.gguf."
)
@click.option(
    "--tokens", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Tokens of answers to learn from."
)
@click.option("--prompts", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Questions, JSON lines.")
@click.option(
    "--repository", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Ask about its Python files."
)
@click.option("--my-chats", is_flag=True, help="Ask what you asked in your chats; they stay on this machine.")
@click.option("--completions", is_flag=True, help="Ask for code at the cursor instead, in pinned packages.")
@click.option(
    "--start",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start from this drafter, not from the pair's own.",
)
@click.option("--fresh", is_flag=True, help="Start from the target's own blocks, not from the pair's drafter.")
@click.option("--layers", type=click.IntRange(1), help="Blocks of the drafter; by default 3, with --pair 1.")
@click.option(
    "--block-size", type=click.IntRange(2, 64), default=8, show_default=True, help="Slots of a draft, anchor included."
)
@click.option(
    "--taps", help=f"Target blocks whose output is read; by default {FOLDERS_TAPS}, with --pair five, spread."
)
@click.option(
    "--short",
    type=click.IntRange(1),
    default=6144,
    show_default=True,
    help="Tokens that it proposes from; where a drafter to start from has some, this chooses them anew.",
)
@click.option(
    "--first-slot",
    type=click.Choice(["anchor", "mask"]),
    default="anchor",
    show_default=True,
    help="The first slot that proposes. llama-server reads drafters of `mask` alone.",
)
@click.option("--mask", metavar="TOKEN", help="Special token of the slots to fill; by default an unused one.")
@click.option(
    "--backend", type=click.Choice(["cpu", "llama.cpp"]), default="cpu", show_default=True, help="What runs the target."
)
@click.option(
    "--sequences",
    type=click.IntRange(1),
    help=f"Answers of one step; by default {SEQUENCES}, with --completions {SEQUENCES_OF_COMPLETIONS}.",
)
@click.option("--anchors", type=click.IntRange(1), default=40, show_default=True, help="Drafts in each of them.")
@click.option("--batch-tokens", type=click.IntRange(1024), default=4096, show_default=True, help="Tokens of one step.")
@click.option(
    "--learning-rate",
    type=click.FloatRange(1e-6, 1.0),
    help=f"Peak learning rate; by default {RATE:g}, {RATE_OF_MORE:g} where a drafter is trained on.",
)
@device_option
@threads_option
@seed_option
@click.pass_context
def drafter(ctx: click.Context, /, folder: Path, pair: str | None, **options: Any) -> int:
    """Train a drafter and write it into FOLDER, as GGUF and as safetensors. What was stopped goes on where it was.

    With --pair the target answers prompts first: questions on pinned packages, or those of --prompts, --repository and
    --my-chats; with --completions it fills in code as at a cursor, which a pair that completes code wants. --minutes
    are those of this call. Afterwards `localdflash chat --pair FOLDER/target.gguf` uses it.
    Without --pair the target is FOLDER/target.gguf, which `train target` wrote.
    """
    for name in OF_FOLDER if pair else OF_A_PAIR:
        if _is_given(ctx, name):
            raise UsageError(f"--{name.replace('_', '-')} is for a drafter {'without' if pair else 'with'} --pair")
    if pair:
        _for_pair(folder, pair, options, [name for name in (*SHAPE, "short") if _is_given(ctx, name)])
    else:
        _for_folder(folder, options)
    return 0


def _is_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def _for_pair(folder: Path, pair: str, options: dict[str, Any], given: list[str]) -> None:
    """`given`: the options of a new drafter's shape, and that of its short vocabulary, if they were given."""
    for name in OF_QUESTIONS:
        if options["completions"] and options[name]:
            raise UsageError(f"--{name.replace('_', '-')} asks questions: leave it or --completions out")
    if options["start"] and options["fresh"]:
        raise UsageError("--start and --fresh exclude each other")
    prepare("cpu", options["threads"])
    from localdflash.lab.train import for_pair
    from localdflash.lab.train.kept_setup import DrafterOptions
    from localdflash.lab.train.kept_training import Schedule
    from localdflash.lab.train.loop import TrainingBudget

    files = _files(pair)
    start = options["start"] or (None if options["fresh"] else files.drafter_safetensors or files.drafter_gguf)
    rate = options["learning_rate"] or (RATE_OF_MORE if start else RATE)
    budget = TrainingBudget(options["minutes"], rate, options["seed"])
    if start and (shape := [name for name in given if name in SHAPE]):
        option = shape[0].replace("_", "-")
        there = "--start names one" if options["start"] else f"{pair} has one to start from: add --fresh"
        raise UsageError(f"--{option} shapes a new drafter, but {there}")
    from_anchor = options["first_slot"] == "anchor"
    layers, own_short = options["layers"] or 1, "short" in given
    wanted = DrafterOptions(
        layers, options["block_size"], options["short"], options["mask"], start, from_anchor, own_short
    )
    taps = None if options["taps"] is None else block_numbers(options["taps"])
    backend, threads, fim = options["backend"], options["threads"], _fim_of(files) if options["completions"] else None
    work = for_pair.Work(folder, files.target, wanted, options["tokens"], budget.minutes, taps, backend, threads, fim)
    meter = ProgressLine()
    sources, make = _completions(folder, files.target, fim, options, meter) if fim else _questions(folder, options)
    for_pair.check_sources(folder, sources)
    needs = for_pair.plan(work)
    meter.say(needs.line())
    if options["my_chats"]:
        meter.say(f"your questions and the answers to them will lie in {folder}, on this machine alone")
    for_pair.write_prompts(folder, sources, make, meter)
    for_pair.answer(work, needs.sequences, meter)
    sequences, measured = (SEQUENCES_OF_COMPLETIONS, MEASURED_COMPLETIONS) if fim else (SEQUENCES, Schedule.measured)
    anchors, in_prompt = options["anchors"], IN_PROMPT if fim else 0
    schedule = Schedule(rate, options["sequences"] or sequences, anchors, in_prompt, measured=measured)
    for_pair.train(work, schedule, meter)
    asked = "complete FILE:LINE:COLUMN" if fim else "chat"
    meter.say(f"use it: localdflash {asked} --pair {folder / 'target.gguf'}")


def _files(pair: str) -> LocalPair:
    """The target's file, and the drafter that it has already."""
    from localdflash.models.registry.registry import load_registry, local_files

    return local_files(load_registry().resolve(pair))


def _fim_of(files: LocalPair) -> FimFormat:
    """Return the target's FIM format."""
    from localdflash.text.fim_formats import detect, format_of
    from localdflash.text.tokenizer import Tokenizer

    fim = format_of(files.fim) if files.fim else detect(Tokenizer.load(files.target))
    if not fim.middle:
        raise UsageError(f"--completions: the format {fim.name!r} has no marker before the middle")
    return fim


def _questions(folder: Path, options: dict[str, Any]) -> tuple[list[str], Any]:
    """The names of the sources of prompts, and what makes questions of them."""
    from itertools import chain

    from localdflash.cli.chat_command import chats_file
    from localdflash.lab.train import own_prompts
    from localdflash.lab.train import training_prompts as making

    seed = options["seed"]
    found: dict[str, Any] = {}
    if path := options["prompts"]:
        found[str(path.absolute())] = lambda: own_prompts.of_file(path)
    if repository := options["repository"]:
        found[str(repository.absolute())] = lambda: own_prompts.of_repository(repository.absolute(), seed)
    if options["my_chats"]:
        found["my chats"] = lambda: own_prompts.of_chats(chats_file())
    if not found:
        found["packages"] = lambda: making.of_corpus(folder / "wheels", seed)
    return list(found), lambda: chain.from_iterable(make() for make in found.values())


def _completions(
    folder: Path, target: Path, fim: FimFormat, options: dict[str, Any], meter: ProgressLine
) -> tuple[list[str], Any]:
    """Return the sources and the prompts of completions."""
    from localdflash.lab.train import completion_prompts as making

    tokens, seed = options["tokens"], options["seed"]
    return ["completions"], lambda: making.of_corpus(folder, target, fim, tokens, seed, meter)


def _for_folder(folder: Path, options: dict[str, Any]) -> None:
    blocks = block_numbers(FOLDERS_TAPS if options["taps"] is None else options["taps"])
    chosen = prepare(options["device"], options["threads"])
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
        say(f"going on with {answers} and {folder / 'drafter'}: move them away if {path.name} has changed since")
    else:
        ends = Tokenizer.load(path).ends
        data = Dataset.load(folder / "corpus" / "train")
        regenerate(model.to(chosen), data, answers, options["tokens"], ends, seed, say)
    budget = TrainingBudget(options["minutes"], options["learning_rate"] or RATE, seed)
    run = training.DrafterRun(config, budget, batch_tokens=options["batch_tokens"])
    trained = training.train(run, model, Dataset.load(answers), folder / "drafter", chosen)
    write_drafter(folder / "drafter.gguf", trained, tokenizer, "F16", "localdflash embedded drafter")
    write_drafter_safetensors(folder / "drafter.safetensors", trained, model.config.num_hidden_layers)
