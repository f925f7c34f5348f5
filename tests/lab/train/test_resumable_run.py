"""The checkpoint that every trainer shares: when it is written, what it brings back, and what it refuses."""

import errno
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.base.errors import TrainingError
from localdflash.lab.train.resumable_run import ResumableRun, State


class Run(ResumableRun):
    """Run of one weight, on a clock that is turned by hand."""

    def __init__(self, folder: Path, save_seconds: float = 1e9) -> None:
        self.now, self.weight = 100.0, torch.zeros(2)
        super().__init__(folder, lambda: self.now, save_seconds)
        self.resume()

    def state(self) -> State:
        return {"weight": self.weight}

    def restore(self, state: State) -> None:
        self.weight.copy_(state["weight"])

    def learn(self, steps: int) -> None:
        for _ in range(steps):
            self.weight += 1
            self.now += 2.0
            self.count_step()
            self.save_if_due()


@pytest.mark.parametrize(("ends_by", "kept"), [(KeyboardInterrupt(), 2), (ValueError(), 0)])
def test_ctrl_c_keeps_a_checkpoint_and_an_error_does_not(ends_by: BaseException, kept: int, tmp_path: Path) -> None:
    run = Run(tmp_path)

    def stopped() -> None:
        with run.sitting():
            run.learn(2)
            raise ends_by

    with pytest.raises(type(ends_by)):
        stopped()
    assert Run(tmp_path).step == kept


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("PytorchStreamWriter failed")])
def test_a_full_disk_keeps_the_checkpoint_before(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save()
    good = run.checkpoint.read_bytes()

    def fails(_state: object, path: Path) -> None:
        path.write_bytes(b"half a checkpoint")
        raise error

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(TrainingError, match=r"cannot write the checkpoint: [^\n]+; the one before is kept$"):
        run.save()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [good]


class Attack:
    """Runs when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code from a checkpoint ran')",)


@pytest.mark.parametrize("damage", ["cut", "empty", "pickle", "other file", "other shape"])
def test_a_checkpoint_that_is_not_this_runs_is_named(damage: str, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save()
    good = run.checkpoint.read_bytes()
    match damage:
        case "cut":
            run.checkpoint.write_bytes(good[: len(good) // 2])
        case "empty":
            run.checkpoint.write_bytes(b"")
        case "pickle":
            run.checkpoint.write_bytes(pickle.dumps(Attack()))
        case "other file":
            torch.save({"weights": torch.zeros(3)}, run.checkpoint)
        case _:
            torch.save({"step": 1, "spent": 1.0, "weight": torch.zeros(3)}, run.checkpoint)
    with pytest.raises(TrainingError, match=r"^[^\n]{,200}last\.pt: damaged, or [^\n]{,100} shape [^\n]*move it away$"):
        Run(tmp_path)
