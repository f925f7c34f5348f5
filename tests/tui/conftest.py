"""What every test of the screen gets: questions that take a key at once, for a test reads faster than people."""

import pytest

from localdflash.tui.screens import confirm


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirm, "CALM", 0.0)
