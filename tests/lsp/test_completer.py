"""The language server with a real daemon: it is started, it dies, it has no model."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from localdflash.base.files import paths
from tests.lsp.test_server import inserted
from tests.support import daemons

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

SOURCE = "def add(first, second):\n    total = first + second\n    re\n"


async def test_the_embedded_pair_completes(editor: Any) -> None:
    async with editor(options={"deadlineMs": 9_000}) as e:
        e.open(SOURCE)
        text = inserted(await e.ask(2, 6))
        assert text.startswith("    return ")
        e.edit(2, 6, text.removeprefix("    re"))
        status = await e.status()
        assert status.tokensPerSecond > 0
        assert status.accepted == 1


async def test_a_pair_that_is_not_here_is_told_once_with_what_to_do(editor: Any) -> None:
    async with editor("qwen3-8b") as e:
        assert await e.ask(0, 0) is None
        e.open(SOURCE)
        for _ in range(3):
            assert await e.ask(2, 6) is None
        (said,) = e.said
        assert "localdflash models pull qwen3-8b" in said
        status = await e.status()
        assert status.kind == "Error"
        assert "localdflash models pull qwen3-8b" in status.message


async def test_an_engine_that_was_killed_is_started_again(editor: Any) -> None:
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


async def test_two_editors_on_one_file_share_the_engine(editor: Any) -> None:
    async with editor(options={"deadlineMs": 9_000}) as first:
        home = paths.engine_socket().parent.parent
        first.open(SOURCE)
        whole = inserted(await first.ask(2, 6))
        async with editor(options={"deadlineMs": 9_000}, home=home) as second:
            second.open(SOURCE)
            one, other = await asyncio.gather(first.ask(2, 6), second.ask(2, 6))
            assert inserted(one) == inserted(other) == whole
            assert len(daemons.daemons(Path(home))) == 1
