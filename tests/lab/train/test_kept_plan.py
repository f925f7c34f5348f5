"""What training takes, before it starts."""

import pytest

from localdflash.base.errors import OutOfMemory
from localdflash.lab.train.kept_plan import TrainingNeeds, needs
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.shapes.decoder_config import DecoderConfig

GB = 1 << 30
LARGE = DecoderConfig(128256, 4096, 32, 32, 8, 128, 14336)  # 8B


def planned(config: DecoderConfig, size: int, free: int) -> TrainingNeeds:
    return needs(config, size, (1, 2, 3, 4, 5), 1_000_000, 1, 6144, MemoryBudget(free, 400 << 20, "memory"))


@pytest.mark.parametrize(("size", "free", "what"), [(9 * GB, 9 * GB, "answering"), (1 * GB, 5 * GB, "training")])
def test_what_does_not_fit_is_said_before_it_starts(size: int, free: int, what: str) -> None:
    with pytest.raises(OutOfMemory, match=f"{what} needs .* are free"):
        planned(LARGE, size, free)
