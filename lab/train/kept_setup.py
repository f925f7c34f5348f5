"""From a folder of kept answers to a training run: short vocabulary, shape, starting weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import TrainingError
from localdflash.lab.train import kept_drafter, short_vocabulary
from localdflash.lab.train.batched_answers import CONTEXT
from localdflash.lab.train.kept_answers import KeptAnswers
from localdflash.lab.train.kept_batches import BlockSource
from localdflash.lab.train.kept_training import KeptRun, Schedule
from localdflash.lab.train.training_prompts import COMPLETIONS, KINDS
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.text.tokenizer import Tokenizer

SAMPLED = 64  # answers whose taps tell how large channels are
SPARE = ("mask", "unused", "reserved", "empty", "pad")  # in the spelling of a special token that answers never hold


@dataclass(frozen=True)
class DrafterOptions:
    """Options of a drafter's shape."""

    layers: int
    block_size: int
    short: int  # tokens of the short vocabulary
    mask: str | None = None  # the special token of slots to be filled; None: one that the target does not use
    start: Path | None = None  # a drafter to start from: its shape and its short vocabulary win
    from_anchor: bool = False  # slot 0 proposes too
    own_short: bool = False  # a short vocabulary of the answers, though `start` has one


def prepare(
    folder: Path, target: Path, into: Path, wanted: DrafterOptions, schedule: Schedule, report: Callable[[str], None]
) -> tuple[KeptRun, BlockSource]:
    """Return a run that starts or resumes in `into`, and the answers below `folder` to learn from."""
    kept = KeptAnswers.load(folder / "answers")
    tokenizer = Tokenizer.load(target)
    into.mkdir(parents=True, exist_ok=True)
    short = _short_vocabulary(into / short_vocabulary.FILE, kept, tokenizer, wanted, report)
    frozen = kept_drafter.Frozen(target, short.long())
    taps = kept.about["taps"]
    assert isinstance(taps, list)
    config = _config(frozen.config, tokenizer, tuple(taps), wanted, target)
    source = BlockSource(kept, config.drafts, short.numpy().astype(np.int64), frozen.config.vocab_size)
    rng = np.random.default_rng(0)
    sizes = source.channel_sizes(SAMPLED, rng)
    if wanted.start:
        drafter = _started(wanted.start, sizes)
    else:
        drafter = kept_drafter.start_from(frozen, config, sizes)
        kept_drafter.fit_head_norms(drafter, frozen, next(source.endless(64, rng)), sizes)
    run = KeptRun(drafter, frozen, sizes, into, schedule)
    report(
        f"{len(source.training):,} answers to learn from, {len(source.held_out):,} held out,"
        f" {kept.answer_tokens():,} answer tokens; step {run.step}"
    )
    return run, source


def _config(
    target: DecoderConfig, tokenizer: Tokenizer, taps: tuple[int, ...], wanted: DrafterOptions, path: Path
) -> DFlashConfig:
    if wanted.start:
        config = config_of_file(wanted.start)
        if config.taps != taps:
            raise TrainingError(
                f"{wanted.start} reads blocks {_listed(config.taps)}, the answers keep those of {_listed(taps)}:"
                " let the target answer again in another folder"
            )
    else:
        shape = replace(target, num_hidden_layers=wanted.layers, qk_norm=True, rope_factors=(), num_experts=0)
        if target.num_experts:
            shape = replace(shape, intermediate_size=3 * target.hidden_size)
        config = DFlashConfig(
            shape,
            wanted.block_size,
            mask_of(wanted, tokenizer),
            taps,
            window=CONTEXT,  # it learns from nothing longer
            sliding=(True,) * wanted.layers,
            causal=False,
            from_anchor=wanted.from_anchor,
        )
    check_fit(config, target.hidden_size, target.vocab_size, target.num_hidden_layers, str(wanted.start or path))
    return config


def _started(path: Path, sizes: torch.Tensor) -> DFlash:
    """Return a drafter from its file; it reads features divided by their channel sizes."""
    drafter = dflash_files.load(path).train().requires_grad_(True)
    kept_drafter.check_trainable(drafter.config)
    drafter.config = replace(drafter.config, short=(), trained_for=None)  # those of the run are written at its end
    with torch.no_grad():
        drafter.fc.weight.mul_(sizes)
    return drafter


def mask_of(wanted: DrafterOptions, tokenizer: Tokenizer) -> int:
    """Return the mask token, which the target never writes; TrainingError if there is none."""
    if wanted.mask:
        return tokenizer.special(wanted.mask)
    for word in SPARE:
        for spelling, token in tokenizer.specials.items():
            if word in spelling.lower() and token not in tokenizer.ends:
                return token
    raise TrainingError("the target's vocabulary has no special token that looks unused: name one with --mask")


def _listed(taps: tuple[int, ...]) -> str:
    return ", ".join(map(str, taps))


def _short_vocabulary(
    path: Path, kept: KeptAnswers, tokenizer: Tokenizer, wanted: DrafterOptions, report: Callable[[str], None]
) -> torch.Tensor:
    """Return the ids of the run's short vocabulary, chosen once from the answers for training.

    Of completions the prompts count too: answers are few, and prompts are code of the same kind.
    """
    if not path.exists():
        answers = (
            kept.tokens[row["start"] + _counted_from(row) : row["start"] + row["length"]].astype(np.int64).tolist()
            for row in kept.index[kept.index["held_out"] == 0]
        )
        inherited = config_of_file(wanted.start).short if wanted.start and not wanted.own_short else ()
        size = len(inherited) or min(wanted.short, tokenizer.vocab_size)
        found = short_vocabulary.count(answers, tokenizer.vocab_size, size, inherited or sorted(tokenizer.ends))
        report(f"{size:,} tokens cover {found.coverage:.2%} of {found.counted:,} in the answers")
        short_vocabulary.save(path, found)
    return short_vocabulary.load(path, tokenizer.vocab_size)


def _counted_from(row: np.void) -> int:
    return 0 if KINDS[row["kind"]] in COMPLETIONS else int(row["prompt"])
