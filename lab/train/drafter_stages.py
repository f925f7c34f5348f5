"""Stages from a GGUF target to its drafter, all resumable in one folder: prompts, answers, training."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from localdflash.base.errors import ModelError, TrainingError
from localdflash.base.files.paths import nearest_folder
from localdflash.base.machine.cores import physical_cores
from localdflash.lab.train import batched_answers, training_needs, training_prompts
from localdflash.lab.train.batched_answers import Parallel
from localdflash.lab.train.drafter_run import Schedule
from localdflash.lab.train.drafter_setup import DrafterOptions, mask_of
from localdflash.lab.train.questions import Question
from localdflash.lab.train.resumable_run import Reporter, locked
from localdflash.lab.train.stored_answers import AnswerWriter, read_about
from localdflash.lab.train.training_needs import TrainingNeeds
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.free import MARGIN, system_budget
from localdflash.models.registry.download import link_or_copy
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.low_rank import sha256_of
from localdflash.text.fim_formats import FimFormat

PROMPTS, SOURCES = "prompts.jsonl", "sources.json"


@dataclass(frozen=True)
class DrafterWork:
    """Training job of a drafter."""

    folder: Path
    target: Path
    options: DrafterOptions
    tokens: int  # of answers, in total
    minutes: float  # of training in this call
    taps: tuple[int, ...] | None = None  # None: as in the stored answers or `options.start`, else `default_taps`
    backend: str | None = None  # runs the target: cpu or llama.cpp; None: torch on a GPU, else cpu
    threads: int = 0  # of llama.cpp; 0: one per core
    fim: FimFormat | None = None  # prompts are completions in this format; None: prompts are questions
    device: str = "cpu"  # trains the drafter

    @property
    def answers_on_gpu(self) -> bool:
        """Return whether torch runs the target on a GPU."""
        return self.device == "cuda" and not self.backend


def write_prompts(
    folder: Path, sources: Sequence[str], make_questions: Callable[[], Iterable[Question]], reporter: Reporter
) -> None:
    """Write the prompts and the names of their sources, unless the file exists; TrainingError without prompts."""
    path = folder / PROMPTS
    if path.exists():
        return
    _make_private(folder)
    (folder / SOURCES).write_text(json.dumps(list(sources)) + "\n", encoding="utf-8")
    count = training_prompts.write(path, make_questions())
    if not count:
        path.unlink()
        raise TrainingError(f"{', '.join(sources)}: no prompts found")
    reporter.say(f"{count:,} prompts")


def check_sources(folder: Path, sources: Sequence[str]) -> None:
    """Raise TrainingError if the folder's prompts come from other sources."""
    about = folder / SOURCES
    if not (folder / PROMPTS).exists() or not about.exists():
        return
    with suppress(ValueError):
        if json.loads(about.read_text(encoding="utf-8")) == list(sources):
            return
    raise TrainingError(f"{folder / PROMPTS} was made from other sources ({about}); use another folder")


def check_and_plan(work: DrafterWork) -> TrainingNeeds:
    """Return the memory, disk space and slots that the job needs; raise an error if the job cannot run here."""
    header = read_header(work.target)
    if len(header.files) > 1:
        raise TrainingError(f"{work.target}: training reads one file; join its parts with llama-gguf-split --merge")
    config = decoder_config(header)
    training_needs.check_vocabulary(config, work.target)
    encoder, taps = batched_answers.PromptEncoder(work.target, work.fim), taps_of(work)
    for tap in taps:
        if not 0 <= tap < config.num_hidden_layers - 1:
            raise ModelError(f"tap {tap}: not a layer of the target (expected 0 to {config.num_hidden_layers - 2})")
    if not work.options.start:
        mask_of(work.options, encoder.tokenizer)
    _check_answers(work, taps)
    answers, options = work.folder / "answers", work.options
    size, budget, most = work.target.stat().st_size, system_budget(), training_needs.CPU_SEQUENCES
    if work.answers_on_gpu:
        size = 4 * sum(prod(info.shape) for info in header.tensors.values())
        budget, most = _gpu_budget(), training_needs.SEQUENCE_COUNTS[0]
    sizes = training_needs.COMPLETIONS if work.fim else training_needs.QUESTIONS
    needs = training_needs.needs(config, size, taps, work.tokens, options.layers, options.short, budget, sizes, most)
    stored_bytes = sum(file.stat().st_size for file in answers.glob("*.bin")) if answers.is_dir() else 0
    training_needs.check_disk(needs, stored_bytes, shutil.disk_usage(nearest_folder(work.folder)).free, work.folder)
    return needs


def _gpu_budget() -> MemoryBudget:
    import torch

    return MemoryBudget(torch.cuda.mem_get_info()[0], MARGIN, "GPU memory")


def _check_answers(work: DrafterWork, taps: tuple[int, ...]) -> None:
    answers = work.folder / "answers"
    if not (answers / "target.json").exists():
        return
    about = read_about(answers)
    if (about.get("sha256"), about["taps"]) != (sha256_of(work.target), list(taps)):
        raise TrainingError(f"{answers} holds answers of another target or with other taps; use another folder")


def taps_of(work: DrafterWork) -> tuple[int, ...]:
    """Return the target layers whose outputs are stored as features for the drafter."""
    if work.taps:
        return work.taps
    if (work.folder / "answers" / "target.json").exists():
        return tuple(read_about(work.folder / "answers")["taps"])  # type: ignore[arg-type]
    if work.options.start:
        return config_of_file(work.options.start).taps
    return training_needs.default_taps(decoder_config(read_header(work.target)).num_hidden_layers)


def answer(work: DrafterWork, sequences: int, reporter: Reporter) -> None:
    """Generate and store the target's answers to the prompts."""
    encoder, taps = batched_answers.PromptEncoder(work.target, work.fim), taps_of(work)
    hidden_size = decoder_config(read_header(work.target)).hidden_size
    about = {"sha256": sha256_of(work.target), "taps": list(taps), "hidden_size": hidden_size}
    prompts = training_prompts.read(work.folder / PROMPTS)
    with AnswerWriter(work.folder / "answers", about) as writer:
        if work.answers_on_gpu:
            from localdflash.backends.reference.gguf_decoder import load_decoder
            from localdflash.lab.train import gpu_answers

            model = load_decoder(work.target).to(work.device)
            gpu_answers.answer_prompts(model, taps, sequences, encoder, prompts, writer, work.tokens, reporter)
            return
        with closing(_engine(work, sequences)) as engine:
            batched_answers.answer_prompts(engine, encoder, prompts, writer, work.tokens, reporter)


def _engine(work: DrafterWork, sequences: int) -> Parallel:
    if work.backend != "llama.cpp":
        from localdflash.lab.train.parallel_cpu import ParallelCpuTarget

        return ParallelCpuTarget(work.target, sequences, batched_answers.CONTEXT, taps_of(work))
    from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH
    from localdflash.lab.train.parallel_target import ParallelTarget

    return ParallelTarget(
        work.target,
        min(sequences, MAX_WIDTH),
        batched_answers.CONTEXT,
        taps_of(work),
        work.threads or len(physical_cores()),
    )


def train(work: DrafterWork, schedule: Schedule, reporter: Reporter) -> None:
    """Train the drafter and write its files; report its tokens per verify step before and after."""
    import torch

    from localdflash.lab.train import drafter_setup
    from localdflash.lab.train.drafter_run import export_drafter

    run_folder = work.folder / "training"
    with locked(work.folder):
        torch.manual_seed(0)
        run, source = drafter_setup.prepare(
            work.folder, work.target, run_folder, work.options, schedule, reporter.say, work.device
        )
        if before := run.measure(source, schedule.measured):
            reporter.say(f"before: {before['held_out']:.3f} tokens per verify step on held-out prompts")
        run.train(source, work.minutes, reporter)
        if before and run.tau < before["held_out"]:
            taus = f"{before['held_out']:.3f} before, {run.tau:.3f} now"
            reporter.say(f"the drafter got worse ({taus}): train on more such prompts")
        blocks = decoder_config(read_header(work.target)).num_hidden_layers
        export_drafter(run, run_folder, work.target, work.folder, blocks)
    if not os.path.lexists(work.folder / "target.gguf"):  # next to the drafter, so that one path loads both
        link_or_copy(work.target, work.folder / "target.gguf")


def _make_private(folder: Path) -> None:
    """Create the folder, private to the user, since prompts may contain the user's text."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be created: {error}") from None
