from collections.abc import Iterator

import pytest

from tests.support.chats import Scene, scene, scene_without_engine


@pytest.fixture
def chats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Yield a fresh home with a running scripted engine."""
    with scene(monkeypatch) as made:
        yield made


@pytest.fixture
def chats_without_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Yield a fresh home without an engine."""
    with scene_without_engine(monkeypatch) as made:
        yield made
