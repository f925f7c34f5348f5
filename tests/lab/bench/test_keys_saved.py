"""Replay in virtual time: the clocks, and the server in the same process."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from localdflash.lab.bench.passages import from_line
from localdflash.lab.bench.typing_replay import Manner
from localdflash.lab.scripts.keys_saved import typed
from localdflash.lsp.engine_completer import CompletionClient, CompletionSource, Event

WHOLE = "import os\n\n\ndef size(path):\n    found = os.stat(path)\n    return found.st_size\n\n\nprint(size('.'))\n"
JOB = from_line("size.py", WHOLE, 5, 60)
MANNER = Manner("neovim", 60, 0)


class Knowing(CompletionClient):
    """Has the rest of the line."""

    def __init__(self) -> None:
        super().__init__(lambda _: None, lambda _: None)

    async def find(self) -> CompletionSource:
        raise NotImplementedError

    async def model(self) -> str:
        return "oracle"

    async def complete(self, body: Mapping[str, object]) -> AsyncGenerator[Event]:
        await asyncio.sleep(0.03)
        before = f"{body['prefix']}{body['middle']}"
        text = WHOLE[len(before) :].partition("\n")[0] if WHOLE.startswith(before) else ""
        yield {"index": 0, "text": text, "confidence": 0.9}
        yield {"index": 0, "text": "", "finish": "line", "confidence": 0.9, "tokens": 3}


def test_keys_are_the_same_each_time_and_most_are_saved() -> None:
    first, second = typed([JOB], MANNER, Knowing()), typed([JOB], MANNER, Knowing())
    assert first == second
    assert first["keystrokes_saved"] > 0.3
    assert first["accepted"]["all"] >= 1
    assert (first["stale"], first["flicker"], first["errors"]) == (0, 0, [])
