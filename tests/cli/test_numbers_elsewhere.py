"""`[server] url`: `chat` tells tokens a second of a server that counts tokens and tells no time."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localdflash.chat.answer_events import MIN_PACE_SECONDS as LEAST

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n"


@contextmanager
def slow_server(usage: dict[str, int] | None) -> Iterator[str]:
    """The address of a server whose answer comes in two texts, with a pause between."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"GET" in head:
            writer.write(HEAD % b"application/json" + json.dumps({"data": [{"id": "other"}]}).encode())
        else:
            writer.write(HEAD % b"text/event-stream")
            for text in ("Hel", "lo"):
                writer.write(_event({"choices": [{"delta": {"content": text}}]}))
                await writer.drain()
                await asyncio.sleep(3 * LEAST)
            writer.write(_event({"choices": [{"delta": {}, "finish_reason": "stop"}]}))
            writer.write((_event({"choices": [], "usage": usage}) if usage else b"") + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _event(told: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(told)}\n\n".encode()


@pytest.mark.parametrize("counts", [True, False])
def test_the_speed_is_ours_where_the_server_counts(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    with slow_server({"prompt_tokens": 3, "completion_tokens": 7} if counts else None) as url:
        monkeypatch.setenv("LOCALDFLASH_SERVER_URL", url)
        done = run("chat", "-p", "Hi", "--json")
    told = json.loads(done.out)
    assert told["answer"] == "Hello"
    assert told.get("tokens") == (7 if counts else None)
    assert ("tokens_per_second" in told) == counts
    if counts:
        assert 0 < told["tokens_per_second"] <= 6 / (3 * LEAST)
