"""Base of every training run: counts steps and time, and saves both with the weights in `last.pt`."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch

from localdflash.base.errors import TrainingError

State = dict[str, Any]  # of tensors and plain numbers: `torch.load` with `weights_only` reads nothing else
SMOOTHING = 0.05  # share of a smoothed number that each step replaces


class Reporter(Protocol):
    """Receiver of a long job's progress: lines that stay, and the share of the work that is done."""

    def say(self, line: str) -> None:
        """Take a line that stays."""

    def move(self, share: float, text: str) -> None:
        """Take how much is done, 0 to 1, with what there is to say of it."""


class ResumableRun(ABC):
    """Training run in a folder: call `resume` when the model exists, and train inside `with self.sitting()`."""

    def __init__(self, folder: Path, clock: Callable[[], float], save_seconds: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.checkpoint = folder, folder / "last.pt"
        self.step, self.spent = 0, 0.0  # seconds of `clock`, of all sittings
        self._clock, self._save_seconds = clock, save_seconds
        self._began = self._saved = 0.0

    @abstractmethod
    def state(self) -> State:
        """Return what a checkpoint holds besides `step` and `spent`."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Take over what `state` returned."""

    @contextmanager
    def sitting(self) -> Iterator[None]:
        """Count time inside, and save at the end and at Ctrl-C; after an error the last good checkpoint stays."""
        self._began, self._saved = self._clock() - self.spent, time.monotonic()
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise
        self.save()

    def count_step(self) -> None:
        """Count a step that is done."""
        self.step, self.spent = self.step + 1, self._clock() - self._began

    def save_if_due(self) -> None:
        """Save if the last checkpoint is old."""
        if time.monotonic() - self._saved > self._save_seconds:
            self.save()
            self._saved = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint; the one before stays until this one is whole."""
        part = self.checkpoint.with_suffix(".part")
        try:
            torch.save({"step": self.step, "spent": self.spent, **self.state()}, part)
            part.replace(self.checkpoint)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            raise TrainingError(f"{part}: cannot write the checkpoint: {error}; the one before is kept") from None

    def resume(self, device: torch.device | str = "cpu") -> None:
        """Restore the checkpoint, if there is one; TrainingError if it is not this run's."""
        if not self.checkpoint.exists():
            return
        try:
            state = torch.load(self.checkpoint, map_location=device, weights_only=True)
            self.restore(state)
            self.step, self.spent = state["step"], state["spent"]
        except TrainingError:
            raise
        except Exception as error:  # torch raises all sorts, with pages of text
            raise TrainingError(
                f"{self.checkpoint}: damaged, or of a model of another shape ({type(error).__name__}): move it away"
            ) from None

    def check_finite(self, loss: float, norm: float) -> None:
        """Raise TrainingError for a loss or a norm of gradients that is no finite number."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"the loss is {loss} at step {self.step}, its gradient's norm {norm}: lower the learning rate"
            )


def smoothed(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return exponential averages of the numbers of each step."""
    return {name: (1 - SMOOTHING) * before.get(name, value) + SMOOTHING * value for name, value in now.items()}
