"""Training whose length does not depend on how busy the machine is."""

from itertools import count
from types import SimpleNamespace

import pytest

from localdflash.train import loop


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of training takes one second: the loop looks at the clock twice a step."""
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=count(0.0, 0.5).__next__))
