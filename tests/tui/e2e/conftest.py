from collections.abc import Iterator

import pytest

from tests.support.chats import Scene, scene, scene_without_engine


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A fresh home, with a scripted engine that runs."""
    with scene(monkeypatch) as made:
        yield made


@pytest.fixture
def lonely(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """A fresh home, and no engine."""
    with scene_without_engine(monkeypatch) as made:
        yield made
