"""Real daemons: start, load, death and restart; a private daemon ends with its chat."""

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
from tests.chat.asking import QUESTION, ask, open_answerer
from tests.support import daemons

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]
SPEC = EngineSpec({"pair": "embedded", "threads": 1})
LONG = ChatSettings(temperature=5.0, seed=0, max_tokens=200)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Any:
    with daemons.short_home(monkeypatch) as folder:
        yield folder


async def test_shared_daemon_outlives_the_chat_and_a_private_one_does_not(folder: Path) -> None:
    async with open_answerer(SharedDaemon(SPEC)) as shared, open_answerer(PrivateDaemon(SPEC)) as private:
        await asyncio.gather(shared.ready(), private.ready())
        assert len(daemons.daemons(folder)) == 2
    assert len(daemons.daemons(folder)) == 1
    assert is_listening(paths.daemon_socket())
    assert not paths.private_socket().exists()


async def test_crashing_gpu_falls_back_to_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", daemons.GPU_ENDS_STEPS + spawn.PROGRAM)
    spec = EngineSpec({"pair": "embedded", "threads": 1, "backend": "auto"})

    async with open_answerer(SharedDaemon(spec)) as answerer:
        settings = replace(LONG, max_tokens=16)
        devices = list[str]()
        answerer.on_stage = lambda stage: devices.append(answerer.info.device) if answerer.info else None
        events = [event async for event in answerer.answer(QUESTION, settings)]
        assert isinstance(events[-1], Done)
        assert events[-1].finish == "length"
        assert answerer.info
        assert answerer.info.device == "cpu"
        assert "2 times today" in answerer.info.notice
        assert "gpu" in devices
        restarts = [index for index, event in enumerate(events) if isinstance(event, AnswerRestart)]
        text = "".join(
            event.text for event in events[restarts[-1] if restarts else 0 :] if isinstance(event, AnswerPiece)
        )
        assert text == (await ask(answerer, settings=settings)).text


async def test_cancelling_during_the_load_ends_a_private_daemon(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    slow = "import time; from localdflash.loading.load_pair import LoadedPair; load = LoadedPair.__init__;"
    slow += "LoadedPair.__init__ = lambda *a: (time.sleep(60), load(*a))[1];"
    monkeypatch.setattr(spawn, "PROGRAM", slow + spawn.PROGRAM)

    loading = asyncio.Event()
    async with open_answerer(PrivateDaemon(SPEC)) as answerer:
        answerer.on_stage = lambda stage: loading.set() if stage == "loading" else None
        asking = asyncio.create_task(ask(answerer))
        await asyncio.wait_for(loading.wait(), 60)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert answerer.stage == "loading"
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 3
    await asyncio.to_thread(daemons.until, lambda: not daemons.daemons(folder), 5)
