"""Real daemons: they start, load, die, load another pair; a private one ends with its chat."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.files import paths
from localdflash.chat.answer_sources import PrivateDaemon, SharedDaemon
from localdflash.chat.answerer import AnswerPiece, AnswerRestart, Done
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.server import spawn
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.sockets import is_listening
from tests.chat.asking import QUESTION, ask, asking
from tests.support import daemons

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
WANTED = EngineSpec({"pair": "embedded", "threads": 1})
LONG = ChatSettings(temperature=5.0, seed=0, max_tokens=200)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Any:
    with daemons.short_home(monkeypatch) as folder:
        yield folder


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines take twenty steps a second."""
    monkeypatch.setattr(spawn, "PROGRAM", daemons.SLOW + spawn.PROGRAM)


async def test_a_shared_engine_stays_and_a_private_one_does_not(folder: Path) -> None:
    async with asking(SharedDaemon(WANTED)) as shared, asking(PrivateDaemon(WANTED)) as private:
        await asyncio.gather(shared.ready(), private.ready())
        assert len(daemons.daemons(folder)) == 2
    assert len(daemons.daemons(folder)) == 1
    assert is_listening(paths.engine_socket())
    assert not paths.private_socket().exists()


async def test_a_gpu_that_ends_every_engine_gives_way_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", daemons.GPU_ENDS_STEPS + spawn.PROGRAM)
    wanted = EngineSpec({"pair": "embedded", "threads": 1, "backend": "auto"})

    async with asking(SharedDaemon(wanted)) as answerer:
        settings = replace(LONG, max_tokens=16)
        devices = list[str]()
        answerer.on_stage = lambda stage: devices.append(answerer.about.device) if answerer.about else None
        events = [event async for event in answerer.answer(QUESTION, settings)]
        assert isinstance(events[-1], Done)
        assert events[-1].finish == "length"
        assert answerer.about
        assert answerer.about.device == "cpu"
        assert "2 times today" in answerer.about.notice
        assert "gpu" in devices
        anew = [index for index, event in enumerate(events) if isinstance(event, AnswerRestart)]
        text = "".join(event.text for event in events[anew[-1] if anew else 0 :] if isinstance(event, AnswerPiece))
        assert text == (await ask(answerer, settings=settings)).text


@pytest.mark.usefixtures("slow")
async def test_an_engine_killed_in_the_middle_goes_on_with_the_same_text(folder: Path) -> None:
    async with asking(SharedDaemon(WANTED)) as answerer:
        settings = replace(LONG, max_tokens=16)
        whole = (await ask(answerer, settings=settings)).text
        events, text = [], ""
        async for event in answerer.answer(QUESTION, settings):
            events.append(event)
            text += event.text if isinstance(event, AnswerPiece) else ""
            if len(events) == 5:
                (daemon,) = daemons.daemons(folder)
                daemon.kill()
    assert text == whole
    assert AnswerRestart() not in events


async def test_who_leaves_while_it_starts_does_not_wait(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    slow = "import time; from localdflash.loading.load_pair import LoadedPair; load = LoadedPair.__init__;"
    slow += "LoadedPair.__init__ = lambda *a: (time.sleep(60), load(*a))[1];"
    monkeypatch.setattr(spawn, "PROGRAM", slow + spawn.PROGRAM)

    loading = asyncio.Event()
    async with asking(PrivateDaemon(WANTED)) as answerer:
        answerer.on_stage = lambda stage: loading.set() if stage == "loading" else None
        asked = asyncio.create_task(ask(answerer))
        await asyncio.wait_for(loading.wait(), 60)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert answerer.stage == "loading"
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 3
    await asyncio.to_thread(daemons.until, lambda: not daemons.daemons(folder), 5)
