"""Training loop of adapters: it learns, resumes exactly, and refuses what is damaged."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localdflash.lab.train import adapter_data, adapter_training
from localdflash.lab.train.adapter_data import FillData
from localdflash.lab.train.adapter_examples import FillExample
from localdflash.lab.train.adapter_training import AdapterRun, AdapterSchedule
from tests.lab.train.tiny_adapters import tiny_adapter, tiny_examples
from tests.support.reports import RecordedReport

pytestmark = pytest.mark.usefixtures("one_thread")
SCHEDULE = AdapterSchedule(2000, 1e-2, step_tokens=100, save_seconds=1e9, measure_seconds=1e9, measured=4)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread: matrices are so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


EXAMPLES = [FillExample([15, 14, 7, 16, 49_000, 0], 4, "python", "rest"), FillExample([1, 2, 3], 2, "chat", "chat")]


def test_nothing_is_left_that_looks_whole_where_writing_ended_early(tmp_path: Path) -> None:
    def broken() -> object:
        yield EXAMPLES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter_data.write(tmp_path / "train", broken())  # type: ignore[arg-type]
    assert not (tmp_path / "train").exists()
    adapter_data.write(tmp_path / "train", EXAMPLES)
    assert len(FillData.load(tmp_path / "train")) == 2
