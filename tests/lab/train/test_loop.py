import errno
import json
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from localdflash.base.errors import TrainingError
from localdflash.lab.train import loop, resumable_run
from localdflash.lab.train.loop import Accumulate, TrainingBudget, TrainingRun, initialise
from localdflash.lab.train.muon import orthogonal
from localdflash.lab.train.resumable_run import ResumableRun, State

STEPS = 60  # a minute of the clock below


class Clock:
    """Clock that advances one second per training step."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (loop, resumable_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Model(nn.Module):
    """A matrix for Muon, an embedding and a norm for AdamW."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(8, 6)
        self.o_proj = nn.Linear(6, 6, bias=False)
        self.norm = nn.LayerNorm(6)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.norm(self.o_proj(self.embed_tokens(ids)))
        return out


def make() -> Model:
    torch.manual_seed(3)
    model = Model()
    initialise(model)
    return model


def learn(model: Model, clock: Clock, until: int = 10**9) -> Accumulate:
    """Return steps that depend only on the progress; step number `until` is interrupted instead."""
    count = 0

    def accumulate(progress: float) -> Mapping[str, float]:
        nonlocal count
        if count == until:
            raise KeyboardInterrupt
        count += 1
        goal = torch.full((6,), 1.0 + progress)
        loss = (model(torch.arange(8)) - goal).square().mean()
        torch.autograd.backward(loss)
        clock.now += 1.0
        return {"loss": loss.item()}

    return accumulate


def equal(one: Any, two: Any) -> bool:
    """Return whether nested states hold the same tensors and numbers."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return bool(one == two)


def test_an_interrupted_run_resumes_exactly(clock: Clock, tmp_path: Path) -> None:
    whole = make()
    TrainingRun(whole, TrainingBudget(1.0, 0.05), tmp_path / "whole").train(learn(whole, clock))

    first = make()
    stopped = TrainingRun(first, TrainingBudget(1.0, 0.05), tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        stopped.train(learn(first, clock, until=25))
    clock.now += 5000.0  # the machine was off

    second = make()
    resumed = TrainingRun(second, TrainingBudget(1.0, 0.05), tmp_path / "parts")
    assert (resumed.step, resumed.spent) == (stopped.step, stopped.spent) == (25, 25.0)
    assert equal(second.state_dict(), first.state_dict())
    for ours, theirs in zip(resumed.optimizers, stopped.optimizers, strict=True):
        assert equal(ours.state_dict(), theirs.state_dict())
        assert ours.state_dict()["state"]
    resumed.train(learn(second, clock))
    assert (resumed.step, resumed.spent) == (STEPS, 60.0)
    assert equal(second.state_dict(), whole.state_dict())


def test_a_log_that_ends_within_a_line_is_repaired(clock: Clock, tmp_path: Path) -> None:
    model = make()
    TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).save()
    (tmp_path / "loss.jsonl").write_text('{"step": 10, "lo')
    TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock))
    logged = [json.loads(line)["step"] for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert logged == list(range(10, STEPS + 1, 10))


def test_a_nan_gradient_does_not_change_the_weights(clock: Clock, tmp_path: Path) -> None:
    model = make()
    before = {name: p.clone() for name, p in model.state_dict().items()}

    def accumulate(_progress: float) -> Mapping[str, float]:
        for p in model.parameters():
            p.grad = torch.full_like(p, math.nan)
        clock.now += 1.0
        return {"loss": 1.0}

    with pytest.raises(TrainingError, match="lower the learning rate"):
        TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(accumulate)
    assert equal(model.state_dict(), before)
    assert not (tmp_path / "last.pt").exists()


@given(
    rows=st.integers(1, 24), columns=st.integers(1, 24), seed=st.integers(0, 999), scale=st.sampled_from([1e-3, 1e4])
)
def test_orthogonal_gives_singular_values_close_to_one(rows: int, columns: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    u, _, v = torch.linalg.svd(torch.randn(2, rows, columns), full_matrices=False)
    spread = torch.linspace(1.0, 0.1, min(rows, columns))
    result = orthogonal(u * spread @ v * scale)
    found = torch.linalg.svdvals(result)
    assert found.shape == (2, min(rows, columns))
    assert found.min() > 0.6
    assert found.max() < 1.3


class Run(ResumableRun):
    """Training run of one weight, with a manual clock."""

    def __init__(self, folder: Path) -> None:
        self.now, self.weight = 100.0, torch.zeros(2)
        super().__init__(folder, lambda: self.now, 1e9)
        self.resume()

    def state(self) -> State:
        return {"weight": self.weight}

    def restore(self, state: State) -> None:
        self.weight.copy_(state["weight"])

    def learn(self, steps: int) -> None:
        for _ in range(steps):
            with self.counted_update():
                self.weight += 1
                self.now += 2.0
            self.save_if_due()


def test_a_new_run_in_the_folder_keeps_the_logs_of_earlier_runs(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "last.pt").unlink(missing_ok=True)  # as a message advises
        run = Run(tmp_path)
        run.learn(5)
        run._log({"loss": number})
        run.save()
    Run(tmp_path)
    logs = [(tmp_path / name).read_text().splitlines() for name in ("log.old.jsonl", "log.jsonl")]
    assert [[json.loads(line)["loss"] for line in lines] for lines in logs] == [[1], [2]]
    (tmp_path / "last.pt").unlink()
    assert not Run(tmp_path).log.exists()
    assert len((tmp_path / "log.old.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(("ends_by", "kept"), [(KeyboardInterrupt(), 2), (ValueError(), 0)])
def test_ctrl_c_keeps_a_checkpoint_and_an_error_does_not(ends_by: BaseException, kept: int, tmp_path: Path) -> None:
    run = Run(tmp_path)

    def stopped() -> None:
        with run.timed():
            run.learn(2)
            raise ends_by

    with pytest.raises(type(ends_by)):
        stopped()
    assert Run(tmp_path).step == kept


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), RuntimeError("PytorchStreamWriter failed")])
def test_a_full_disk_keeps_the_previous_checkpoint(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.save()
    good = run.checkpoint.read_bytes()

    def fails(_state: object, path: Path) -> None:
        path.write_bytes(b"half a checkpoint")
        raise error

    monkeypatch.setattr(torch, "save", fails)
    with pytest.raises(TrainingError, match=r"cannot write the checkpoint: [^\n]+; the previous checkpoint remains$"):
        run.save()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [good]


class Attack:
    """Runs when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code from a checkpoint ran')",)


@pytest.mark.parametrize("damage", ["cut", "empty", "pickle", "other file", "other shape"])
def test_a_foreign_or_damaged_checkpoint_is_refused(damage: str, tmp_path: Path) -> None:
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
