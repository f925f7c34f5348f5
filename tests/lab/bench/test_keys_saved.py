"""The replay in virtual time: the clocks, the server in the same process, and answers that are written down."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import cast

import pytest

from localdflash.engine.generate import Request
from localdflash.lab.bench.passages import from_line
from localdflash.lab.bench.typing_replay import Manner
from localdflash.lab.scripts.keys_saved import typed
from localdflash.lab.scripts.support.recorded_engine import Records
from localdflash.loading.load_pair import LoadedPair
from localdflash.lsp.engine_completer import CompletionClient, CompletionSource, Event
from localdflash.models.registry.registry import load_registry, local_files
from tests.support.scripted_pair import scripted_pair

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


def test_an_answer_is_generated_once(tmp_path: Path) -> None:
    vocabulary, path = local_files(load_registry().resolve("embedded")).target, tmp_path / "records"
    with scripted_pair(vocabulary, "return 1", "<|im_end|>") as options, LoadedPair(options) as loaded:
        spell, request = loaded.tokenizer.spell, Request(loaded.tokenizer.encode("def size"), 96)
        request.ends = loaded.tokenizer.ends
        records = Records(loaded, path)
        few, all_of_it = list(records.of(request, "", 1).tokens), records.of(request, "", 96)
        assert spell(all_of_it.tokens[:-1]) == b"return 1"
    assert all_of_it.tokens[: len(few)] == few
    assert all_of_it.ended
    nobody = cast(LoadedPair, None)
    assert Records(nobody, path).of(request, "", 96) == all_of_it
    with pytest.raises(AttributeError):  # the same prompt with another word is another answer
        Records(nobody, path).of(request, "re", 96)
