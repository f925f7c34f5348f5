"""From a folder of kept answers to a training run: short vocabulary, shape, starting weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from localdflash.model import short_vocabulary
from localdflash.model.dflash_config import DFlashConfig, check_fit
from localdflash.reference.gguf_decoder import load_decoder
from localdflash.text.tokenizer import Tokenizer
from localdflash.train import kept_drafter
from localdflash.train.kept_answers import KeptAnswers
from localdflash.train.kept_batches import Source
from localdflash.train.kept_training import KeptRun, Schedule

SAMPLED = 64  # answers whose taps tell how large channels are


@dataclass(frozen=True)
class Wanted:
    """The shape of a drafter, as far as it is a choice."""

    layers: int
    block_size: int
    mask: str  # a special token of the target's vocabulary
    short: int  # tokens of the short vocabulary


def prepare(
    folder: Path, target: Path, into: Path, wanted: Wanted, schedule: Schedule, report: Callable[[str], None]
) -> tuple[KeptRun, Source]:
    """A run that starts in `into`, or goes on there, and the answers below `folder` that it learns from."""
    kept = KeptAnswers.load(folder / "answers")
    tokenizer = Tokenizer.load(target)
    decoder = load_decoder(target)
    into.mkdir(parents=True, exist_ok=True)
    short = _short_vocabulary(into / short_vocabulary.FILE, kept, tokenizer, wanted.short, report)
    taps = kept.about["taps"]
    assert isinstance(taps, list)
    shape = replace(decoder.config, num_hidden_layers=wanted.layers, qk_norm=True)
    config = DFlashConfig(shape, wanted.block_size, tokenizer.special(wanted.mask), tuple(taps))
    check_fit(config, shape.hidden_size, shape.vocab_size, decoder.config.num_hidden_layers, str(target))
    source = Source(kept, config.block_size, short.numpy().astype(np.int64), shape.vocab_size)
    rng = np.random.default_rng(0)
    sizes = source.channel_sizes(SAMPLED, rng)
    frozen = kept_drafter.Frozen(decoder, short.long())
    drafter = kept_drafter.start_from(decoder, config, sizes)
    kept_drafter.fit_head_norms(drafter, frozen, next(source.endless(64, rng)), sizes)
    run = KeptRun(drafter, frozen, sizes, into, schedule)
    report(
        f"{len(source.training):,} answers to learn from, {len(source.held_out):,} held out,"
        f" {kept.answer_tokens():,} answer tokens; step {run.step}"
    )
    return run, source


def _short_vocabulary(
    path: Path, kept: KeptAnswers, tokenizer: Tokenizer, size: int, report: Callable[[str], None]
) -> torch.Tensor:
    """The ids of a run's short vocabulary, chosen once from the answers that are for training."""
    if not path.exists():
        answers = (
            kept.tokens[row["start"] + row["prompt"] : row["start"] + row["length"]].astype(np.int64).tolist()
            for row in kept.index[kept.index["held_out"] == 0]
        )
        found = short_vocabulary.count(answers, tokenizer.vocab_size, size, sorted(tokenizer.ends))
        report(f"{size:,} tokens cover {found.coverage:.2%} of {found.counted:,} in the answers")
        short_vocabulary.save(path, found)
    return short_vocabulary.load(path, tokenizer.vocab_size)
