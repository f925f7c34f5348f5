"""The language server's engine with recorded answers: it answers as the daemon does, and writes no answer twice."""

import asyncio
from pathlib import Path

from localdflash.lab.scripts.support.recorded_engine import RecordedEngine
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options

BODY = {"path": "a.py", "language": "python", "prefix": "def add(a, b):\n    ", "suffix": "\n", "stream": True}


async def complete(engine: RecordedEngine) -> str:
    return "".join([str(event["text"]) async for event in engine.complete(BODY) if "text" in event])


def test_an_answer_is_recorded_and_read_again(tmp_path: Path) -> None:
    records = tmp_path / "records.json"
    with LoadedPair(Options("embedded", backend="cpu", threads=1, draft=False)) as loaded:
        text = asyncio.run(complete(RecordedEngine(loaded, records)))
        assert text.strip()
        recorded = records.read_bytes()
        assert asyncio.run(complete(RecordedEngine(loaded, records))) == text
    assert records.read_bytes() == recorded
