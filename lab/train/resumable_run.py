"""Base class of training runs: counts steps and time, saves both with the weights in `last.pt`, and keeps a log."""

import json
import math
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from filelock import FileLock, Timeout

from localdflash.base.errors import TrainingError

State = dict[str, Any]  # tensors and plain numbers, as `torch.load` with `weights_only` requires
SMOOTHING = 0.05  # weight of the newest value in a smoothed number


class Reporter(Protocol):
    """Receiver of a long job's progress: permanent lines, and the finished share of the work."""

    def say(self, line: str) -> None:
        """Show a permanent line."""

    def move(self, share: float, text: str) -> None:
        """Show the finished share, 0 to 1, with a text."""


def clock_on(device: str) -> Callable[[], float]:
    """Return the clock of a run: processor time on a CPU, which other programs use too, else wall-clock time."""
    return time.process_time if device == "cpu" else time.monotonic


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder of a run; TrainingError if another process trains in it."""
    try:
        with FileLock(folder / "lock", timeout=0):
            yield
    except Timeout:
        raise TrainingError(f"{folder}: another process is training here") from None


class ResumableRun(ABC):
    """Training run in a folder: call `resume` when the model exists, and train inside `with self.timed()`."""

    def __init__(
        self, folder: Path, clock: Callable[[], float], save_seconds: float, log_name: str = "log.jsonl"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.checkpoint, self.log = folder, folder / "last.pt", folder / log_name
        self.step, self.spent = 0, 0.0  # seconds of `clock`, restarts included
        self._clock, self._save_seconds = clock, save_seconds
        self._began = self._saved = 0.0

    @abstractmethod
    def state(self) -> State:
        """Return the content of a checkpoint besides `step` and `spent`."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Restore a run from the result of `state`."""

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time inside; save at the end and at Ctrl-C, but not after an error."""
        self._began, self._saved = self._clock() - self.spent, time.monotonic()
        try:
            yield
        except KeyboardInterrupt:
            self.save()
            raise
        self.save()

    @contextmanager
    def counted_update(self) -> Iterator[None]:
        """Update the weights inside, and count the step and its time; Ctrl-C waits until both are complete."""
        interrupts = list[int]()
        handler = signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
        try:
            yield
            self.step, self.spent = self.step + 1, self._clock() - self._began
        finally:
            signal.signal(signal.SIGINT, handler)
        if interrupts:
            signal.raise_signal(signal.SIGINT)

    def save_if_due(self) -> None:
        """Save if the last checkpoint is older than `save_seconds`."""
        if time.monotonic() - self._saved > self._save_seconds:
            self.save()
            self._saved = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint, which replaces the previous one atomically."""
        part = self.checkpoint.with_suffix(".part")
        try:
            torch.save({"step": self.step, "spent": self.spent, **self.state()}, part)
            part.replace(self.checkpoint)
        except (OSError, RuntimeError) as error:
            part.unlink(missing_ok=True)
            raise TrainingError(
                f"{part}: cannot write the checkpoint: {error}; the previous checkpoint remains"
            ) from None

    def resume(self, device: torch.device | str = "cpu") -> None:
        """Restore the checkpoint, if there is one, and trim the log; TrainingError if it belongs to another run.

        Without a checkpoint a new run begins: the log of an earlier run is moved to the end of `log.old.jsonl`.
        """
        if self.checkpoint.exists():
            self._load(device)
            self._trim_log()
        elif self.log.exists():
            with self.log.with_suffix(".old.jsonl").open("ab") as old:
                old.write(self.log.read_bytes())
            self.log.unlink()

    def _load(self, device: torch.device | str) -> None:
        try:
            state = torch.load(self.checkpoint, map_location=device, weights_only=True)
            self.restore(state)
            self.step, self.spent = state["step"], state["spent"]
        except TrainingError:
            raise
        except Exception as error:  # torch raises many types, with long messages
            raise TrainingError(
                f"{self.checkpoint}: damaged, or of a model of another shape ({type(error).__name__}); move it away"
            ) from None

    def _trim_log(self) -> None:
        """Remove log lines of steps after the checkpoint, which are repeated, and lines damaged by a power cut."""
        if self.log.exists():
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            kept = "".join(line for line in lines if 0 <= _step_of(line) <= self.step)
            self.log.write_text(kept, encoding="utf-8")

    def _log(self, values: Mapping[str, float]) -> None:
        """Append a line with the step, the minutes of `clock` and the values to the log."""
        row = {"step": self.step, "cpu_minutes": round(self.spent / 60, 1)}
        row |= {name: round(value, 4) for name, value in values.items()}
        with self.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(row) + "\n")

    def check_finite(self, loss: float, norm: float) -> None:
        """Raise TrainingError for a loss or a gradient norm that is not finite."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingError(
                f"step {self.step}: the loss is {loss}, its gradient norm {norm}; lower the learning rate"
            )


def _step_of(line: str) -> int:
    """Return the step of a line of a log; -1 for a damaged or incomplete line."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else -1
    except (ValueError, TypeError, KeyError):
        return -1


def smoothed(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Return the exponential averages `before`, updated with the numbers `now` of one step."""
    return {name: (1 - SMOOTHING) * before.get(name, value) + SMOOTHING * value for name, value in now.items()}
