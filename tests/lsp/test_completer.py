"""The language server with a real daemon: it is started, it dies, it has no model."""

from typing import Any

import psutil
import pytest

from tests.lsp.test_server import inserted
from tests.support import daemons

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

SOURCE = "def add(first, second):\n    total = first + second\n    re\n"


async def test_the_embedded_pair_completes(editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.lsp.session.MANUAL_SECONDS", 60.0)  # a busy machine starts the engine in seconds
    async with editor(options={"deadlineMs": 9_000}) as e:
        e.open(SOURCE)
        assert await e.ask(2, 6, manual=True)
        text = inserted(await e.ask(2, 6))
        assert text.startswith("    return ")
        e.edit(2, 6, text.removeprefix("    re"))
        status = await e.status()
        assert status.tokensPerSecond > 0
        assert status.accepted == 1


async def test_an_engine_that_was_killed_is_started_again(editor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.lsp.session.MANUAL_SECONDS", 60.0)  # a busy machine starts the engine in seconds
    async with editor(options={"deadlineMs": 9_000}) as e:
        e.open(SOURCE)
        whole = (await e.ask(2, 4, manual=True)).items[0].insert_text
        with daemons.client() as client:
            psutil.Process(client.get("/ps")["pid"]).kill()
        e.edit(2, 4, " ")
        e.edit(2, 4, "", removed=1)
        assert (await e.ask(2, 4, manual=True)).items[0].insert_text == whole
        assert (await e.status()).kind == "Normal"
        assert e.said == []
