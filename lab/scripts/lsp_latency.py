"""Measure the latency that the language server adds to an answer, by file size, with an engine that answers at once.

`PYTHONPATH=. python -P lab/scripts/lsp_latency.py [--json FILE]` types keys into the middle of a file. In the results,
`fresh` has the times of keys that each need a new answer from the engine, `along` those of keys that agree with the
suggestion. Times are milliseconds seen by this process, including pipe and JSON.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from localdflash.lab import result_file
from localdflash.lab.bench.lsp_process import LanguageServer
from localdflash.lab.bench.spread import spread
from localdflash.lab.scripts.support import bench_daemon, instant_engine

LSP = [sys.executable, "-P", "-c", bench_daemon.PROGRAM, "lsp"]
KEYS, WARMUP_KEYS = 200, 10  # keys that are typed; the first ones are not timed
SIZES = (200, 2_000, 20_000)
LINE = "    total = total + weights[{0}] * values[{0}]  # term {0} of the sum\n"


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result: dict[str, Any] = {"keys": KEYS}
    for lines in SIZES:
        result[str(lines)] = asyncio.run(_measure(lines))
        print(f"{lines:6} lines", result[str(lines)])
    result_file.write(given.json, result)


async def _measure(lines: int) -> dict[str, Any]:
    half = "".join(LINE.format(number) for number in range(lines // 2)) + "\n"
    text = "".join(f"    result_{number} = combine(first_{number}, second_{number})\n\n" for number in range(KEYS))
    with tempfile.TemporaryDirectory() as folder:
        oracle = Path(folder) / "oracle.py"
        oracle.write_text(half + text + half, encoding="utf-8")
        with bench_daemon.running(*instant_engine.COMMAND, str(oracle)):
            return {"along": await _type(half, text, fresh=False), "fresh": await _type(half, text, fresh=True)}


async def _type(half: str, text: str, *, fresh: bool) -> dict[str, float]:
    """Type the start of `text` between two copies of `half`, time the answers; `fresh`: edit a line after each key."""
    server = await LanguageServer.start(LSP, str(Path.cwd()), lambda method, params: None)
    await server.request_and_wait(
        "initialize", {"processId": os.getpid(), "rootUri": None, "capabilities": _CAPABILITIES}
    )
    server.notify("initialized", {})
    uri, times, answered = "file:///project/a.py", [], 0
    item = {"uri": uri, "languageId": "python", "version": 0, "text": half + half}
    server.notify("textDocument/didOpen", {"textDocument": item})
    line, column = half.count("\n"), 0
    for number, key in enumerate(text[:KEYS]):
        at = {"line": line, "character": column}
        line, column = (line + 1, 0) if key == "\n" else (line, column + 1)
        began = time.perf_counter()
        _change(server, uri, at, at, key)
        answer = await _ask(server, uri, line, column)
        times.append((time.perf_counter() - began) * 1e3)
        answered += answer is not None
        if fresh:  # a comment above invalidates the suggestion
            top = {"line": 0, "character": 0}
            _change(server, uri, top, top, f"# {number}\n")
            line += 1
        await asyncio.sleep(0.01)
    await server.stop()
    return {**spread(times[WARMUP_KEYS:]), "answered": answered}


def _change(server: LanguageServer, uri: str, start: Any, end: Any, text: str) -> None:
    _change.version += 1  # type: ignore[attr-defined]
    change = {"range": {"start": start, "end": end}, "text": text}
    document = {"uri": uri, "version": _change.version}  # type: ignore[attr-defined]
    server.notify("textDocument/didChange", {"textDocument": document, "contentChanges": [change]})


_change.version = 0  # type: ignore[attr-defined]


async def _ask(server: LanguageServer, uri: str, line: int, column: int) -> Any:
    position = {"line": line, "character": column}
    params = {"textDocument": {"uri": uri}, "position": position, "context": {"triggerKind": 2}}
    return await server.request_and_wait("textDocument/inlineCompletion", params)


_CAPABILITIES = {
    "general": {"positionEncodings": ["utf-16"]},
    "textDocument": {"inlineCompletion": {}, "synchronization": {}},
}

if __name__ == "__main__":
    main()
