"""Examples on the disk, and the order in which they are read."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from localdflash.lab.train import adapter_data
from localdflash.lab.train.adapter_data import FillData
from localdflash.lab.train.adapter_examples import FillExample

EXAMPLES = [FillExample([15, 14, 7, 16, 49_000, 0], 4, "python", "rest"), FillExample([1, 2, 3], 2, "chat", "chat")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert adapter_data.write(tmp_path / "train", EXAMPLES) == 9
    return tmp_path / "train"


def test_nothing_is_left_that_looks_whole_where_writing_ended_early(tmp_path: Path) -> None:
    def broken() -> object:
        yield EXAMPLES[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter_data.write(tmp_path / "train", broken())  # type: ignore[arg-type]
    assert not (tmp_path / "train").exists()
    adapter_data.write(tmp_path / "train", EXAMPLES)
    assert len(FillData.load(tmp_path / "train")) == 2


def test_the_order_goes_on_from_any_position() -> None:
    data = FillData(np.zeros(0, np.uint32), np.zeros(7, adapter_data.RECORD))
    whole = list(islice(data.endless(3, 0), 30))
    assert sorted(whole[:7]) == sorted(whole[7:14]) == list(range(7))
    assert whole[:7] != whole[7:14]
    for position in (1, 6, 7, 8, 20):
        assert list(islice(data.endless(3, position), 10)) == whole[position : position + 10]
    assert list(islice(data.endless(4, 0), 30)) != whole
