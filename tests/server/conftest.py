"""Daemons for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import daemons
from tests.support.served import slow

__all__ = ["slow"]


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See `daemons.short_home`."""
    with daemons.short_home(monkeypatch) as folder:
        yield folder
