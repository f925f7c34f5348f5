"""Examples on the disk, and the order in which they are read."""

from pathlib import Path

import pytest

from localdflash.lab.train import adapter_data
from localdflash.lab.train.adapter_data import FillData
from localdflash.lab.train.adapter_examples import FillExample

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
