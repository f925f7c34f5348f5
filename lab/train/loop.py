"""Training loop of a target or a drafter: time budget, learning rate schedule, checkpoints, log, picture.

The time budget includes all restarts of a run. Ctrl-C saves a checkpoint.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from localdflash.base.errors import UsageError
from localdflash.lab.train.muon import Muon
from localdflash.lab.train.resumable_run import ResumableRun, State, smoothed
from localdflash.lab.train.training_pictures import draw_loss

SAVE_SECONDS = 300  # between checkpoints
LOG_STEPS = 10  # between log lines
WARM_UP = 0.02  # share of the budget

# Runs one forward and backward pass at a progress from 0 to 1; returns the values to log, which include "loss".
Accumulate = Callable[[float], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingBudget:
    """Training time and peak learning rate."""

    minutes: float
    learning_rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("minutes", self.minutes), ("learning rate", self.learning_rate)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name}: expected a number above 0, got {value}")


def rate(progress: float) -> float:
    """Return the share of the peak learning rate: linear warm-up, cosine to a fiftieth."""
    if progress < WARM_UP:
        return 0.02 + 0.98 * progress / WARM_UP
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


def initialise(model: nn.Module) -> None:
    """Initialise embeddings with 0.02, matrices with 1/sqrt(fan-in), scaled down if they write the residual stream."""
    for name, p in model.named_parameters():
        if p.ndim != 2:
            continue
        writes_residual = "o_proj" in name or "down_proj" in name
        nn.init.normal_(p, std=0.02 if "embed" in name else p.shape[1] ** -0.5 * (0.3 if writes_residual else 1.0))


def build_optimizers(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices, and AdamW for embeddings, head and norms."""
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name or "lm_head" in name]
    return [Muon(matrices, learning_rate), torch.optim.AdamW(others, learning_rate, (0.9, 0.95), weight_decay=0.0)]


class TrainingRun(ResumableRun):
    """Training run in a folder: `last.pt`, `loss.jsonl`, `loss.png`."""

    def __init__(self, model: nn.Module, budget: TrainingBudget, folder: Path) -> None:
        super().__init__(folder, time.monotonic, SAVE_SECONDS, "loss.jsonl")
        self.model, self.budget = model, budget
        self.optimizers = build_optimizers(model, budget.learning_rate)
        self.resume(next(model.parameters()).device)

    def train(self, accumulate: Accumulate) -> None:
        """Train until the budget is spent."""
        total, smooth = self.budget.minutes * 60, dict[str, float]()
        with self.log.open("a", encoding="utf-8") as log, self.timed():
            while self.spent < total:
                logged = self._one_step(accumulate, self.spent / total)
                smooth = smoothed(smooth, logged)
                if self.step % LOG_STEPS == 0:
                    log.write(json.dumps({"step": self.step, **{k: round(v, 4) for k, v in smooth.items()}}) + "\n")
                    log.flush()
                    self._show(smooth, self.spent / total, total - self.spent)
                self.save_if_due()
        draw_loss(self.log, self.folder / "loss.png")

    def _one_step(self, accumulate: Accumulate, progress: float) -> Mapping[str, float]:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.budget.learning_rate * rate(progress)
        logged = accumulate(progress)
        self.check_finite(logged["loss"], nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item())
        with self.counted_update():
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return logged

    def _show(self, values: Mapping[str, float], progress: float, left: float) -> None:
        bar = "#" * round(progress * 20)
        numbers = "  ".join(f"{name} {value:.3f}" for name, value in values.items())
        line = f"[{bar:20}] step {self.step}  {numbers}  {left / 60:.1f} min left"
        print(line, file=sys.stderr, flush=True, end="\r" if sys.stderr.isatty() else "\n")

    def state(self) -> State:
        """See `ResumableRun`."""
        return {"model": self.model.state_dict(), "optimizers": [each.state_dict() for each in self.optimizers]}

    def restore(self, state: State) -> None:
        """See `ResumableRun`."""
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
