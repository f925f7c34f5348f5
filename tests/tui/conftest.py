"""What every test of the screen gets: dialogs that take a key at once, for a test reads faster than people."""

import pytest

from localdflash.tui.screens import dialog


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialog, "CALM", 0.0)
