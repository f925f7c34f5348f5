"""Train a small Qwen3-shaped code model for a number of minutes.

The last fifth runs at twice the row length, so that the model learns its whole context.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from localdflash.backends.reference.decoder import Decoder, causal
from localdflash.base.errors import TrainingError
from localdflash.lab.train.dataset import Dataset
from localdflash.lab.train.loop import TrainingBudget, TrainingRun, initialise
from localdflash.models.shapes.decoder_config import DecoderConfig

HELD_OUT_ROWS, HELD_OUT_LENGTH = 64, 512  # in a measurement; tokens of a row
LONG_ROWS = 0.8  # share of the time after which rows are twice as long


@dataclass(frozen=True)
class TargetRun:
    """Parameters of a training run."""

    model: DecoderConfig
    budget: TrainingBudget
    batch_tokens: int = 8192  # per optimizer step
    micro_tokens: int = 2048  # per forward pass
    row: int = 512  # tokens of a training sequence


def rows(data: Dataset, length: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Return an endless iterator over rows of `length` + 1 ids, each from the start of a random example.

    TrainingError if no row is that long.
    """
    starts = data.examples["start"]
    starts = starts[starts < len(data.tokens) - length - 1]
    if not len(starts):
        raise TrainingError(f"token files: no row of {length} tokens; use a larger corpus")
    shuffled = chain.from_iterable(rng.permutation(starts) for _ in count())
    return (data.tokens[start : start + length + 1].astype(np.int64) for start in shuffled)


def loss_of(model: Decoder, batch: Tensor) -> Tensor:
    """Return the mean next-token cross-entropy of rows [B, T + 1], in nats."""
    positions = torch.arange(batch.shape[1] - 1, device=batch.device)
    hidden, _ = model(batch[:, :-1], positions, causal)
    return F.cross_entropy(model.logits(hidden).flatten(0, 1).float(), batch[:, 1:].flatten())


def train(run: TargetRun, data: Dataset, folder: Path, device: str) -> Decoder:
    """Train or resume in `folder`; return the model at the end of the budget."""
    torch.manual_seed(run.budget.seed)
    model = Decoder(run.model).to(device)
    initialise(model)
    training = TrainingRun(model, run.budget, folder)
    compiled = torch.compile(loss_of, dynamic=False)
    streams = {
        length: rows(data, length, np.random.default_rng([run.budget.seed, training.step, length]))
        for length in (run.row, run.row * 2)
    }
    parts = run.batch_tokens // run.micro_tokens

    def accumulate(progress: float) -> Mapping[str, float]:
        length = run.row * (2 if progress >= LONG_ROWS else 1)
        total = 0.0
        for _ in range(parts):
            batch = np.stack([next(streams[length]) for _ in range(run.micro_tokens // length)])
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                loss = compiled(model, torch.from_numpy(batch).to(device)) / parts
            loss.backward()
            total += loss.item()
        return {"loss": total}

    training.train(accumulate)
    return model


def held_out_rows(data: Dataset) -> Iterator[NDArray[np.int64]]:
    """Return the rows for `held_out_loss`; TrainingError if the data are too short."""
    return islice(rows(data, HELD_OUT_LENGTH, np.random.default_rng(0)), HELD_OUT_ROWS)


@torch.inference_mode()
def held_out_loss(model: Decoder, held_out: Iterable[NDArray[np.int64]]) -> float:
    """Return the mean loss over held-out rows, in nats per token."""
    device = next(model.parameters()).device
    return float(np.mean([loss_of(model, torch.from_numpy(row[None]).to(device)).item() for row in held_out]))
