"""A pair whose drafter has a short vocabulary."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from localdflash.lab.train.shorten import drafters_in, shorten
from localdflash.models.weights.gguf import read_header


def shortened(pair: Path, folder: Path, ids: Sequence[int]) -> Path:
    """Copy the pair of a folder into a new one, where its drafter proposes from `ids` alone."""
    copied = Path(shutil.copytree(pair, folder))
    for drafter in drafters_in(copied):
        shorten(drafter, read_header(copied / "target.gguf"), ids)
    return copied
