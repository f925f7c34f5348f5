"""Stages from a GGUF target to its code adapter, all resumable in one folder: packages, examples, training."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import TrainingError
from localdflash.code.fim.encoder import Encoder
from localdflash.lab.train import adapter_corpus, adapter_data, adapter_mixture
from localdflash.lab.train.adapter import Adapter
from localdflash.lab.train.adapter_data import FimDataset
from localdflash.lab.train.adapter_examples import FimExampleSampler
from localdflash.lab.train.adapter_export import MARKERS, TRAINED, notes_for, read_into, write_adapter
from localdflash.lab.train.adapter_training import AdapterRun, AdapterSchedule
from localdflash.lab.train.drafter_run import product_type
from localdflash.lab.train.resumable_run import Reporter, locked
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import read_header
from localdflash.models.weights.low_rank import merge, write_vocabulary
from localdflash.text.fim_formats import detect
from localdflash.text.tokenizer import Tokenizer

EXAMPLE_TOKENS = 300  # estimated length of an example
HELD_OUT_EXAMPLES = 600
HELD_OUT_CHAT_TOKENS = 20_000


@dataclass(frozen=True)
class AdapterWork:
    """Training job of an adapter."""

    folder: Path
    target: Path
    rank: int
    answers: Path | None = None  # folder of the target's answers, mixed into the examples
    start: Path | None = None  # an adapter of the target to continue from
    device: str = "cpu"  # trains the adapter


def check(work: AdapterWork) -> None:
    """Raise TrainingError if the target cannot have an adapter; called before anything is downloaded."""
    header = read_header(work.target)
    config = decoder_config(header)
    specials = Tokenizer.load(work.target).specials
    missing = [token for token in MARKERS if token not in specials.values()]
    if header.architecture != "llama" or config.num_experts or not config.tie_word_embeddings or missing:
        raise TrainingError(f"{work.target}: not SmolLM2 (expected a llama with a tied head and SmolLM2's vocabulary)")


def make_examples(work: AdapterWork, tokens: int, seed: int, reporter: Reporter) -> None:
    """Write the examples of the training and held-out splits that do not exist yet; downloads missing packages.

    TrainingError if all exist, but without the answers of `work`.
    """
    folder, vocabulary = work.folder / "examples", work.folder / "vocabulary.gguf"
    missing = [name for name in ("train", "held_out") if not (folder / name).exists()]
    if not missing:
        if work.answers and "chat" not in FimDataset.load(folder / "train").kinds:
            raise TrainingError(f"{folder} was made without --answers; use another folder")
        return
    work.folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(work.target, notes_for(work.target), vocabulary)
    tokenizer = Tokenizer.load(vocabulary)
    form, encoder, archives = detect(tokenizer), Encoder(tokenizer), adapter_corpus.fetch_archives(work.folder)
    for name in missing:
        held_out = name == "held_out"
        split_archives = [archive for archive in archives if archive.held_out == held_out]
        count = HELD_OUT_EXAMPLES if held_out else tokens // EXAMPLE_TOKENS
        chat_tokens = HELD_OUT_CHAT_TOKENS if held_out else round(tokens * adapter_mixture.CHAT_SHARE)
        mixed = adapter_mixture.chat_examples(work.answers, held_out, chat_tokens, seed) if work.answers else ()
        sample = FimExampleSampler.sample
        sampled = adapter_mixture.sample_packages(split_archives, encoder, form, count, seed, reporter, sample)
        written = adapter_data.write(folder / name, chain(sampled, mixed))
        reporter.say(f"{name}: {written:,} tokens of examples")


def prepare(work: AdapterWork, schedule: AdapterSchedule) -> AdapterRun:
    """Return the run of the folder, resumed at its last checkpoint."""
    torch.manual_seed(schedule.seed)
    adapter = Adapter(load_decoder(work.target).to(work.device), work.rank, TRAINED, product_type(work.device))
    if work.start:
        read_into(adapter, work.start, work.target)
    train, held_out = (FimDataset.load(work.folder / "examples" / name) for name in ("train", "held_out"))
    return AdapterRun(adapter, train, held_out, work.folder / "training", schedule)


def train(work: AdapterWork, schedule: AdapterSchedule, reporter: Reporter) -> None:
    """Train on all tokens; write the adapter's file and the merged model."""
    with locked(work.folder):
        run = prepare(work, schedule)
        size = f"{len(run.adapter.linears)} matrices of rank {work.rank}"
        reporter.say(f"{size}; step {run.step}, {run.tokens:,} tokens")
        run.train(reporter)
    path = work.folder / "adapter.safetensors"
    write_adapter(path, run.adapter, work.target)
    merge(work.target, path, work.folder / "target.gguf")
