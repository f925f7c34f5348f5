"""Set up a training run from a folder of stored answers: short vocabulary, shape, starting weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.base.errors import TrainingError
from localdflash.lab.train import drafter_pass, short_vocabulary
from localdflash.lab.train.batched_answers import CONTEXT
from localdflash.lab.train.draft_blocks import BlockSource
from localdflash.lab.train.drafter_run import Schedule, StoredAnswersRun
from localdflash.lab.train.stored_answers import StoredAnswers
from localdflash.lab.train.training_prompts import COMPLETIONS, KINDS
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.dflash_config import DFlashConfig, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.text.tokenizer import Tokenizer

SCALE_ANSWERS = 64  # answers over which the RMS of the feature channels is measured
UNUSED_TOKEN_WORDS = ("mask", "unused", "reserved", "empty", "pad")  # in spellings of unused tokens


@dataclass(frozen=True)
class DrafterOptions:
    """Options of a drafter's shape."""

    layers: int
    block_size: int  # slots of a draft, including the anchor's
    short: int  # size of the short vocabulary, the tokens that the drafter can propose
    mask: str | None = None  # special token in slots whose token is unknown; None: one that the target does not use
    start: Path | None = None  # a drafter to start from; its shape and short vocabulary have precedence
    from_anchor: bool = False  # whether slot 0 proposes too
    own_short: bool = False  # choose a short vocabulary from the answers even if `start` has one


def prepare(
    folder: Path,
    target: Path,
    run_folder: Path,
    options: DrafterOptions,
    schedule: Schedule,
    report: Callable[[str], None],
    device: str = "cpu",
) -> tuple[StoredAnswersRun, BlockSource]:
    """Return a run that starts or resumes in `run_folder`, and the source of its blocks: the answers in `folder`."""
    stored = StoredAnswers.load(folder / "answers")
    tokenizer = Tokenizer.load(target)
    run_folder.mkdir(parents=True, exist_ok=True)
    short = _short_vocabulary(run_folder / short_vocabulary.FILE, stored, tokenizer, options, report)
    frozen = drafter_pass.FrozenTarget(target, short.long(), device)
    taps = stored.about["taps"]
    assert isinstance(taps, list)
    config = _drafter_config(frozen.config, tokenizer, tuple(taps), options, target)
    source = BlockSource(stored, config.drafts, short.numpy().astype(np.int64), frozen.config.vocab_size)
    rng = np.random.default_rng(0)
    sizes = source.channel_sizes(SCALE_ANSWERS, rng)
    if options.start:
        drafter = _load_scaled(options.start, sizes).to(device)
    else:
        drafter = drafter_pass.start_from(frozen, config, sizes).to(device)
        drafter_pass.fit_head_norms(drafter, frozen, next(source.endless(1, 64, rng, device=device)), sizes.to(device))
    run = StoredAnswersRun(drafter, frozen, sizes.to(device), run_folder, schedule)
    if run.step:  # whatever `options.start` is
        report(f"continuing {run_folder} from step {run.step}; for a new start, move that folder away")
    report(
        f"{len(source.training):,} answers to learn from, {len(source.held_out):,} held out,"
        f" {stored.count_answer_tokens():,} answer tokens"
    )
    return run, source


def _drafter_config(
    target: DecoderConfig, tokenizer: Tokenizer, taps: tuple[int, ...], options: DrafterOptions, path: Path
) -> DFlashConfig:
    if options.start:
        config = config_of_file(options.start)
        if config.taps != taps:
            raise TrainingError(
                f"{options.start} reads layers {_listed(config.taps)}, the answers have layers {_listed(taps)};"
                " let the target answer again in another folder"
            )
    else:
        shape = replace(target, num_hidden_layers=options.layers, qk_norm=True, qkv_bias=False)
        shape = replace(shape, rope_factors=(), num_experts=0)
        if target.num_experts:
            shape = replace(shape, intermediate_size=3 * target.hidden_size)
        config = DFlashConfig(
            shape,
            options.block_size,
            mask_of(options, tokenizer),
            taps,
            window=CONTEXT,  # the longest training sequence
            sliding=(True,) * options.layers,
            causal=False,
            from_anchor=options.from_anchor,
        )
    check_fit(config, target.hidden_size, target.vocab_size, target.num_hidden_layers, str(options.start or path))
    return config


def _load_scaled(path: Path, sizes: torch.Tensor) -> DFlash:
    """Load a drafter and scale `fc`, so that it reads features divided by their channel sizes."""
    drafter = dflash_files.load(path).train().requires_grad_(True)
    drafter_pass.check_trainable(drafter.config)
    drafter.config = replace(drafter.config, short=(), trained_for=None)  # the export sets both again
    with torch.no_grad():
        drafter.fc.weight.mul_(sizes)
    return drafter


def mask_of(options: DrafterOptions, tokenizer: Tokenizer) -> int:
    """Return the mask token, which the target never generates; TrainingError if there is none."""
    if options.mask:
        return tokenizer.special(options.mask)
    for word in UNUSED_TOKEN_WORDS:
        for spelling, token in tokenizer.specials.items():
            if word in spelling.lower() and token not in tokenizer.ends:
                return token
    raise TrainingError("the target's vocabulary has no special token that looks unused; name one with --mask")


def _listed(taps: tuple[int, ...]) -> str:
    return ", ".join(map(str, taps))


def _short_vocabulary(
    path: Path, stored: StoredAnswers, tokenizer: Tokenizer, options: DrafterOptions, report: Callable[[str], None]
) -> torch.Tensor:
    """Return the ids of the run's short vocabulary, chosen once from the answers for training.

    The prompts of completions are counted too: answers are few, and prompts are code of the same kind.
    """
    if not path.exists():
        answers = (
            stored.tokens[row["start"] + _first_counted(row) : row["start"] + row["length"]].astype(np.int64).tolist()
            for row in stored.index[stored.index["held_out"] == 0]
        )
        inherited = config_of_file(options.start).short if options.start and not options.own_short else ()
        size = len(inherited) or min(options.short, tokenizer.vocab_size)
        vocabulary = short_vocabulary.count(answers, tokenizer.vocab_size, size, inherited or sorted(tokenizer.ends))
        report(f"{size:,} tokens cover {vocabulary.coverage:.2%} of {vocabulary.counted:,} in the answers")
        short_vocabulary.save(path, vocabulary)
    ids = short_vocabulary.load(path, tokenizer.vocab_size)
    if options.own_short and len(ids) != min(options.short, tokenizer.vocab_size):
        raise TrainingError(
            f"{path}: the run has a short vocabulary of {len(ids)} tokens, not {options.short} (--short);"
            " use another folder"
        )
    return ids


def _first_counted(row: np.void) -> int:
    return 0 if KINDS[row["kind"]] in COMPLETIONS else int(row["prompt"])
