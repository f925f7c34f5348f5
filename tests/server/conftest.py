"""Daemons for the tests of this folder."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.models.load_options import Options
from localdflash.server.api.metrics import Metrics
from localdflash.server.engine_spec import ROLES, PairRole
from localdflash.server.engines import Engines
from localdflash.server.worker import PairWorker
from tests.support import daemons
from tests.support.engine_daemon import Daemon
from tests.support.served import slow

__all__ = ["slow"]


@pytest.fixture
def short_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """See `daemons.short_home`."""
    with daemons.short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


@pytest.fixture
async def make(tiny: str) -> AsyncIterator[Callable[..., Any]]:
    """Create engines that start with the tiny pair for some roles."""
    made: list[Daemon] = []

    async def daemon(*roles: PairRole, **later: str) -> Daemon:
        first = PairWorker(Options(tiny, "llama.cpp", threads=1, context=1024), 8_000_000, 4, Metrics().observe)
        pairs = {role: Options(pair, "llama.cpp", threads=1) for role, pair in later.items()}
        made.append(Daemon(Engines(first, roles or ROLES, pairs)))  # type: ignore[arg-type]
        made[-1].engines.start()
        await first.ready()
        return made[-1]

    yield daemon
    for one in made:
        await one.http.aclose()
        await asyncio.to_thread(one.engines.close)
