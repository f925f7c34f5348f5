from pathlib import Path

import numpy as np
import pytest
import torch

from localdflash.backends.reference.decoder import Decoder
from localdflash.lab.train.dataset import EXAMPLE_DTYPE, Dataset
from localdflash.lab.train.loop import TrainingBudget, initialise
from localdflash.lab.train.target_training import TargetRun, held_out_loss, train
from localdflash.models.shapes.decoder_config import DecoderConfig

SHAPE = DecoderConfig(40, 32, 2, 2, 1, 16, 64)


def dataset(*lengths: int, tokens: list[int] | None = None) -> Dataset:
    """Examples of these lengths; ids count up from 0 unless given."""
    starts = np.cumsum([0, *lengths])
    table = [(int(start), 1, length, 0) for start, length in zip(starts[:-1], lengths, strict=True)]
    ids = list(range(int(starts[-1]))) if tokens is None else tokens
    return Dataset(np.array(ids, np.uint16), np.array(table, EXAMPLE_DTYPE))


def model_of(seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    model = Decoder(SHAPE)
    initialise(model)
    return model


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_options: function)


def run_of(seconds: float, rate: float = 0.02) -> TargetRun:
    return TargetRun(SHAPE, TrainingBudget(seconds / 60, rate), batch_tokens=256, micro_tokens=128, row=32)


@pytest.mark.nightly
@pytest.mark.usefixtures("uncompiled", "steady_clock")
def test_a_target_learns_what_is_to_be_learned(tmp_path: Path) -> None:
    data = dataset(*[40] * 20, tokens=[token for _ in range(20) for token in range(40)])
    trained = train(run_of(40.0), data, tmp_path, "cpu")
    assert held_out_loss(trained, data, count=4, length=32) < 0.5 < held_out_loss(model_of(), data, 4, 32)
