"""The loop: it learns, goes on as if it had never been stopped, and says what is wrong."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localdflash.base.errors import TrainingError
from localdflash.lab.train import adapter_training
from localdflash.lab.train.adapter_data import FillData
from localdflash.lab.train.adapter_training import AdapterRun, AdapterSchedule
from tests.lab.train.tiny_adapters import tiny_adapter, tiny_examples
from tests.support.reports import RecordedReport

pytestmark = pytest.mark.usefixtures("one_thread")
SCHEDULE = AdapterSchedule(2000, 1e-2, step_tokens=100, save_seconds=1e9, measure_seconds=1e9, measured=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[FillData, FillData]:
    folder = tmp_path_factory.mktemp("examples")
    return tiny_examples(folder / "train", 60), tiny_examples(folder / "held_out", 9)


def numbers(run: AdapterRun) -> list[torch.Tensor]:
    return [parameter.detach().clone() for _, parameter in run.adapter.parameters()]


def steps(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "log.jsonl").read_text().splitlines()]


@pytest.mark.nightly
def test_it_learns(data: tuple[FillData, FillData], tmp_path: Path) -> None:
    run = AdapterRun(tiny_adapter(), *data, tmp_path, replace(SCHEDULE, tokens=6000, learning_rate=2e-2))
    before, said = run.measure(), RecordedReport()
    run.train(said)
    after = run.measure()
    assert after["held_out"] < 0.6 * before["held_out"]
    assert set(after) == {"held_out", "exact", "loss_python", "exact_python", "loss_chat"}
    assert (tmp_path / "training.png").stat().st_size > 1000
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert rows[0]["held_out"] == pytest.approx(before["held_out"], abs=1e-4)
    assert rows[-1]["tokens"] == run.tokens >= 6000
    assert said.shares == sorted(said.shares)


def test_a_run_that_was_killed_gets_the_numbers_of_one_that_was_not(
    data: tuple[FillData, FillData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = AdapterRun(tiny_adapter(), *data, tmp_path / "whole", SCHEDULE)
    whole.train(RecordedReport())

    class Killed(BaseException):
        pass

    def fall(run: AdapterRun, values: dict[str, float]) -> None:
        log(run, values)
        if run.step == 5:
            run.save()
        if run.step == 8:  # what came after the checkpoint is lost
            raise Killed

    log = AdapterRun._log

    with monkeypatch.context() as patch:
        patch.setattr(AdapterRun, "_log", fall)
        patch.setattr(adapter_training, "draw_adapter_training", lambda *_: None)
        with pytest.raises(Killed):
            AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE).train(RecordedReport())
    with (tmp_path / "parts" / "log.jsonl").open("a") as log_file:
        log_file.write('{"step": 8, "tok')
    torch.manual_seed(99)
    again = AdapterRun(tiny_adapter(), *data, tmp_path / "parts", SCHEDULE)
    assert again.step == 5
    again.train(RecordedReport())
    assert (again.step, again.position, again.tokens) == (whole.step, whole.position, whole.tokens)
    for one, other in zip(numbers(again), numbers(whole), strict=True):
        assert torch.equal(one, other)
    assert steps(tmp_path / "parts") == steps(tmp_path / "whole")


def test_an_interrupted_run_keeps_its_last_step(
    data: tuple[FillData, FillData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(run: AdapterRun, values: dict[str, float]) -> None:
        if run.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(AdapterRun, "_log", interrupt)
    monkeypatch.setattr(adapter_training, "draw_adapter_training", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        AdapterRun(tiny_adapter(), *data, tmp_path, SCHEDULE).train(RecordedReport())
    assert AdapterRun(tiny_adapter(), *data, tmp_path, SCHEDULE).step == 3


@pytest.mark.nightly
def test_asked_for_fewer_tokens_it_ends_and_for_more_it_goes_on(
    data: tuple[FillData, FillData], tmp_path: Path
) -> None:
    run = AdapterRun(tiny_adapter(), *data, tmp_path, SCHEDULE)
    run.train(RecordedReport())
    done = run.step
    for tokens, more in ((1000, False), (2500, True)):
        run = AdapterRun(tiny_adapter(), *data, tmp_path, replace(SCHEDULE, tokens=tokens))
        run.train(RecordedReport())
        assert (run.step > done) == more


def test_the_rate_rises_stays_and_falls() -> None:
    schedule = AdapterSchedule(100_000, 1e-3)
    rates = [schedule.rate(seen) for seen in range(0, 100_000, 1000)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[10] == rates[60] == 1e-3
    assert rates[70:] == sorted(rates[70:], reverse=True)
    assert rates[-1] < 1e-4


def test_a_checkpoint_is_not_taken_for_another_runs(data: tuple[FillData, FillData], tmp_path: Path) -> None:
    AdapterRun(tiny_adapter(), *data, tmp_path, SCHEDULE).save()
    with pytest.raises(TrainingError, match="another shape"):
        AdapterRun(tiny_adapter(rank=2), *data, tmp_path, SCHEDULE)
    with pytest.raises(TrainingError, match="other examples, or with another --seed"):
        AdapterRun(tiny_adapter(), *data, tmp_path, replace(SCHEDULE, seed=1))


def test_a_loss_that_is_no_number_ends_the_run_and_spoils_no_checkpoint(
    data: tuple[FillData, FillData], tmp_path: Path
) -> None:
    run = AdapterRun(tiny_adapter(), *data, tmp_path, SCHEDULE)
    run.save()
    before = (tmp_path / "last.pt").read_bytes()
    with torch.no_grad():
        next(iter(run.adapter.linears.values())).up.fill_(torch.nan)
    run.adapter.merge()
    with pytest.raises(TrainingError, match="the loss is nan at step 0"):
        run.train(RecordedReport())
    assert (tmp_path / "last.pt").read_bytes() == before
