"""Training whose length does not depend on how busy the machine is."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from localdflash.lab.train import loop, resumable_run


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of training takes one second: the loop looks at the clock twice a step."""
    seconds = count(0.0, 0.5)
    for module in (loop, resumable_run):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=seconds.__next__))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch on one thread: matrices are so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
