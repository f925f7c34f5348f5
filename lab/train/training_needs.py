"""Memory and disk space that the training of a drafter needs, computed before the training starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localdflash.base.errors import OutOfMemory, TrainingError, UsageError
from localdflash.lab.train.batched_answers import CONTEXT, MAX_COMPLETION_PROMPT, MAX_QUESTION
from localdflash.lab.train.stored_answers import LIKELY, LIKELY_COUNT
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.memory.parts import format_bytes
from localdflash.models.shapes.decoder_config import DecoderConfig

MAX_VOCAB_SIZE = 1 << 17  # larger vocabularies are untested, and labels would take more memory
PROGRAM_BYTES = 700 << 20  # Python with torch and llama.cpp
COPIES = 5  # of a drafter's weights: the weights, gradients, average and momenta
SEQUENCE_COUNTS = (2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
CPU_SEQUENCES = 64  # more are not faster


class PromptSizes(NamedTuple):
    """Lengths of prompts."""

    share: float  # prompt ids stored per answer id, measured with SmolLM2
    longest: int  # ids


QUESTIONS, COMPLETIONS = PromptSizes(0.8, MAX_QUESTION), PromptSizes(9.5, MAX_COMPLETION_PROMPT)


@dataclass(frozen=True)
class TrainingNeeds:
    """Bytes that the training of a drafter needs."""

    disk: int  # for the answers
    answering: int  # memory
    training: int  # memory
    sequences: int  # answered at once

    def line(self) -> str:
        """Return the needs as a line for the user."""
        return (
            f"needs {format_bytes(self.disk)} of disk for the answers,"
            f" {format_bytes(self.answering)} of memory to answer"
            f" ({self.sequences} at a time), {format_bytes(self.training)} to train"
        )


def needs(
    config: DecoderConfig,
    target: int,
    taps: Sequence[int],
    tokens: int,
    layers: int,
    short: int,
    budget: MemoryBudget,
    prompts: PromptSizes = QUESTIONS,
    most: int = CPU_SEQUENCES,
) -> TrainingNeeds:
    """Return the needs for `tokens` answer ids and at most `most` sequences; OutOfMemory if one does not fit."""
    width = len(taps) * config.hidden_size
    slot = _slot(config, width, prompts.longest)
    disk = round(tokens * (1 + prompts.share)) * (2 * width + 4 + LIKELY_COUNT * LIKELY.itemsize)
    training = PROGRAM_BYTES + 4 * COPIES * _drafter_weights(config, width, layers) + 8 * short * config.hidden_size
    counts = [count for count in SEQUENCE_COUNTS if count <= most]
    sequences = next((n for n in counts if _fits(PROGRAM_BYTES + target + n * slot, budget)), 0)
    answering = PROGRAM_BYTES + target + max(sequences, 1) * slot
    for stage, size in (("answering", answering), ("training", training)):
        if not _fits(size, budget):
            raise OutOfMemory(
                f"{stage}: needs {format_bytes(size)}, {format_bytes(budget.free)} of {budget.what} are free;"
                " close other programs, or take a smaller target"
            )
    return TrainingNeeds(disk, answering, training, sequences)


def check_disk(required: TrainingNeeds, stored_bytes: int, free: int, folder: Path) -> None:
    """Raise TrainingError if the missing answers do not fit on the disk."""
    missing = required.disk - stored_bytes
    if missing > free:
        raise TrainingError(
            f"{folder}: the answers need {format_bytes(missing)} more, {format_bytes(free)} are free; reduce --tokens,"
            " or use another disk"
        )


def default_taps(layers: int, count: int = 5) -> tuple[int, ...]:
    """Return `count` of a target's layers, spread as in z-lab's drafters; UsageError for a tiny target."""
    if layers < 5:
        raise UsageError(f"target: {layers} layers are too few for default taps; name them with --taps")
    if layers - 3 < count:
        return tuple(range(1, layers - 2))
    return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def check_vocabulary(config: DecoderConfig, path: Path) -> None:
    """Raise TrainingError for a vocabulary that is too large."""
    if config.vocab_size > MAX_VOCAB_SIZE:
        raise TrainingError(
            f"{path}: vocabulary too large (expected at most {MAX_VOCAB_SIZE:,}, got {config.vocab_size:,})"
        )


def _drafter_weights(c: DecoderConfig, width: int, layers: int) -> int:
    across, narrow = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer = 2 * c.hidden_size * (across + narrow) + 3 * c.hidden_size * (c.intermediate_size or 3 * c.hidden_size)
    return layers * layer + width * c.hidden_size


def _slot(c: DecoderConfig, width: int, longest: int) -> int:
    """Return the bytes of one conversation: KV cache in float32 at most, features of prompt and answer."""
    cache = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * CONTEXT * 4
    return cache + 4 * longest * width + 2 * CONTEXT * width


def _fits(size: int, budget: MemoryBudget) -> bool:
    return size + budget.margin <= budget.free
