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
from torch import Tensor, nn

from localdflash.base.errors import TrainingError
from localdflash.lab.train import loop
from localdflash.lab.train.loop import Accumulate, TrainingBudget, TrainingRun, draw_curve, initialise

PNG = b"\x89PNG\r\n\x1a\n"
STEPS = 60  # a minute of the clock below


class Clock:
    """Time that passes only in steps of training: one second each."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Model(nn.Module):
    """A matrix for Muon, an embedding and a norm for AdamW."""

    def __init__(self, size: int = 6) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(8, size)
        self.o_proj = nn.Linear(size, size, bias=False)
        self.norm = nn.LayerNorm(size)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.norm(self.o_proj(self.embed_tokens(ids)))
        return out


def make(size: int = 6) -> Model:
    torch.manual_seed(3)
    model = Model(size)
    initialise(model)
    return model


def learn(model: Model, clock: Clock, until: int = 10**9, loss_is: float | None = None) -> Accumulate:
    """Steps that depend on nothing but the progress; step number `until` is interrupted instead."""
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
        return {"loss": loss.item() if loss_is is None else loss_is}

    return accumulate


def checkpoint(folder: Path) -> dict[str, Any]:
    state = torch.load(folder / "last.pt", weights_only=True)
    assert isinstance(state, dict)
    return state


def equal(one: Any, two: Any) -> bool:
    """Whether nested states hold the same tensors and numbers."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(equal, one, two))
    return bool(one == two)


def test_a_run_lasts_its_minutes_and_learns(clock: Clock, tmp_path: Path) -> None:
    model = make()
    before = (model(torch.arange(8)) - 2).square().mean().item()
    run = TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path)
    run.train(learn(model, clock))
    assert (run.step, run.spent) == (STEPS, 60.0)
    assert (model(torch.arange(8)) - 2).square().mean().item() < 0.5 * before
    assert equal(checkpoint(tmp_path)["model"], model.state_dict())


def test_the_log_and_the_picture(clock: Clock, tmp_path: Path) -> None:
    model = make()
    TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock))
    lines = [json.loads(line) for line in (tmp_path / "loss.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 50, 60]
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)


def test_an_interrupted_run_goes_on_exactly_where_it_stopped(clock: Clock, tmp_path: Path) -> None:
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
    for ours, theirs in zip(resumed.steppers, stopped.steppers, strict=True):
        assert equal(ours.state_dict(), theirs.state_dict())
        assert ours.state_dict()["state"]
    resumed.train(learn(second, clock))
    assert (resumed.step, resumed.spent) == (STEPS, 60.0)
    assert equal(second.state_dict(), whole.state_dict())


def test_a_finished_run_is_not_trained_further(clock: Clock, tmp_path: Path) -> None:
    model = make()
    TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock))
    again = TrainingRun(make(), TrainingBudget(1.0, 0.05), tmp_path)
    again.train(learn(model, clock, until=0))
    assert (again.step, again.spent) == (STEPS, 60.0)


def test_a_longer_budget_goes_on(clock: Clock, tmp_path: Path) -> None:
    for minutes in (1.0, 1.5):
        model = make()
        run = TrainingRun(model, TrainingBudget(minutes, 0.05), tmp_path)
        run.train(learn(model, clock))
    assert run.step == 90


def test_checkpoints_are_written_along_the_way(clock: Clock, tmp_path: Path) -> None:
    model = make()
    inner = learn(model, clock)
    seen: list[bool] = []

    def accumulate(progress: float) -> Mapping[str, float]:
        seen.append((tmp_path / "last.pt").exists())
        return inner(progress)

    TrainingRun(model, TrainingBudget(loop.SAVE_SECONDS / 60 + 0.2, 0.05), tmp_path).train(accumulate)
    assert seen.index(True) in (loop.SAVE_SECONDS + 1, loop.SAVE_SECONDS + 2)


@pytest.fixture
def good(clock: Clock, tmp_path: Path) -> bytes:
    """The checkpoint of a run that was stopped after 20 steps."""
    model = make()
    with pytest.raises(KeyboardInterrupt):
        TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock, until=20))
    return (tmp_path / "last.pt").read_bytes()


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed")]
)
def test_a_full_disk_keeps_the_checkpoint_before(
    good: bytes, error: Exception, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_state: object, path: Path) -> None:
        path.write_bytes(b"half a checkpoint")
        raise error

    monkeypatch.setattr(torch, "save", fails)
    model = make()
    with pytest.raises(TrainingError, match=r"cannot write the checkpoint: [^\n]+; the one before is kept$"):
        TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock))
    monkeypatch.undo()
    assert (tmp_path / "last.pt").read_bytes() == good
    assert list(tmp_path.glob("*.part")) == []
    assert TrainingRun(make(), TrainingBudget(1.0, 0.05), tmp_path).step == 20


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_training_and_spoils_nothing(
    good: bytes, loss: float, clock: Clock, tmp_path: Path
) -> None:
    model = make()
    with pytest.raises(TrainingError, match=r"^the loss is (nan|inf) at step 20, [^\n]*lower the learning rate$"):
        TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path).train(learn(model, clock, loss_is=loss))
    assert (tmp_path / "last.pt").read_bytes() == good


def test_a_gradient_that_is_no_number_never_reaches_the_weights(clock: Clock, tmp_path: Path) -> None:
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


class Attack:
    """Runs when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code from a checkpoint ran')",)


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "pickle", "other file"])
def test_a_checkpoint_that_cannot_be_read(good: bytes, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    match damage:
        case "cut":
            path.write_bytes(good[: len(good) // 2])
        case "empty":
            path.write_bytes(b"")
        case "text":
            path.write_text("no checkpoint")
        case "pickle":
            path.write_bytes(pickle.dumps(Attack()))
        case _:
            torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(TrainingError, match=r"^[^\n]*last\.pt: damaged[^\n]*move it away$"):
        TrainingRun(make(), TrainingBudget(1.0, 0.05), tmp_path)


def test_a_checkpoint_of_another_shape(good: bytes, tmp_path: Path) -> None:
    assert good
    with pytest.raises(TrainingError, match=r"^[^\n]*last\.pt: [^\n]*another shape[^\n]*$") as caught:
        TrainingRun(make(size=12), TrainingBudget(1.0, 0.05), tmp_path)
    assert len(str(caught.value)) < 300


def test_the_rate_follows_the_schedule(clock: Clock, tmp_path: Path) -> None:
    model = make()
    run = TrainingRun(model, TrainingBudget(1.0, 0.05), tmp_path)
    inner, seen = learn(model, clock), []

    def accumulate(progress: float) -> Mapping[str, float]:
        rates = {group["lr"] for stepper in run.steppers for group in stepper.param_groups}
        assert rates == {0.05 * loop.rate(progress)}
        seen.append(progress)
        return inner(progress)

    run.train(accumulate)
    assert seen == [pytest.approx(i / STEPS) for i in range(STEPS)]


def test_gradients_are_clipped(clock: Clock, tmp_path: Path) -> None:
    model = make()
    inner = learn(model, clock)

    def accumulate(progress: float) -> Mapping[str, float]:
        inner(progress)
        for p in model.parameters():
            assert p.grad is not None
            p.grad.mul_(1e6)
        return {"loss": 1.0}

    run = TrainingRun(model, TrainingBudget(1 / 60, 0.05), tmp_path)
    run.train(accumulate)
    (momentum,) = (state["momentum"] for state in run.steppers[0].state.values())
    assert momentum.norm() <= 0.05 + 1e-6  # of a clipped gradient, times 1 - 0.95


def test_initial_weights_keep_activations_in_range() -> None:
    torch.manual_seed(0)
    matrices = {name: nn.Linear(400, 300) for name in ("q_proj", "o_proj", "down_proj")}
    embedding, bias = nn.Embedding(300, 400), matrices["q_proj"].bias.clone()
    initialise(nn.ModuleDict(matrices | {"embed_tokens": embedding}))
    for name, factor in {"q_proj": 1.0, "o_proj": 0.3, "down_proj": 0.3}.items():
        assert matrices[name].weight.std().item() == pytest.approx(factor * 400**-0.5, rel=0.02)
    assert embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert torch.equal(matrices["q_proj"].bias, bias)


@pytest.mark.parametrize("lines", [0, 1, 3])
def test_a_curve_of_any_length(lines: int, tmp_path: Path) -> None:
    log = tmp_path / "loss.jsonl"
    log.write_text("".join(json.dumps({"step": i, "loss": 1.0 / (i + 1)}) + "\n" for i in range(lines)))
    draw_curve(log, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(PNG)
