"""Latency of `localdflash chat`: start, key to echo, stop, long answers, long chats, memory.

`PYTHONPATH=. taskset -c 0,1 python -P lab/scripts/chat_latency.py --json FILE [--only NAME]` runs the real program on a
pseudo-terminal of 100 x 30 with a scripted engine. Times are milliseconds from the write of a key to the read of the
bytes that show it. `fence` runs without a terminal and reports how late the event loop is.
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from localdflash.lab import result_file
from localdflash.lab.bench.spread import spread
from localdflash.lab.scripts.support import bench_daemon, scripted_engine
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import script
from localdflash.lab.scripts.support.terminal import READY, Terminal, chat

STARTS, KEYS, STOPS, OPENINGS, TURNS = 20, 150, 20, 10, 2000
TICK = 0.005  # seconds
LETTERS = [chr(code) for code in range(0x0410, 0x0450)]  # found in no other output
MEGABYTE = 1 << 20
Times = dict[str, Any]


@contextmanager
def engine() -> Iterator[Callable[..., None]]:
    """Run a scripted engine as a process with its own home; yield the function that sets its answers."""
    with bench_daemon.running(*scripted_engine.COMMAND):
        yield _script


def _script(*answers: Answer, **rest: Any) -> None:
    with bench_daemon.client() as client:
        client.post("/script", json.loads(script(*answers, **rest)))


def start() -> Times:
    """Measure the time from the process start to the prompt on the screen, and to the echo of a key."""
    shown, echoed = [], []
    with engine():
        for _ in range(STARTS + 1):
            began = time.perf_counter()
            with chat() as terminal:
                terminal.wait_written(READY, 0)
                shown.append(terminal.times[-1][0] - began)
                _echo(terminal, LETTERS[0])
                echoed.append(terminal.times[-1][0] - began)
    return {"prompt": summary(shown[1:]), "first_key": summary(echoed[1:])}  # the first start shows a longer welcome


def echo() -> Times:
    """Measure the time from a key to its echo, without an answer and during answers."""
    found = {}
    for rate in (0, 100, 400):
        with engine() as set_answers, chat() as terminal:
            terminal.wait_written(READY, 0)
            set_answers(Answer.of(code(4000), rate=rate))
            if rate:
                send(terminal, "go", "value_")
            found[f"at_{rate}"] = summary(_keys(terminal))
    return found


def _keys(terminal: Terminal) -> list[float]:
    draw, times = Random(1), []
    for number in range(KEYS):
        times.append(_echo(terminal, LETTERS[number % len(LETTERS)]))
        terminal.press("backspace")
        terminal.watch(draw.uniform(0.05, 0.12))
    return times


def stop() -> Times:
    """Measure the time from Esc to the notice that the answer was stopped."""
    times = []
    with engine() as set_answers, chat() as terminal:
        terminal.wait_written(READY, 0)
        set_answers(Answer.of(code(4000), rate=100))
        for number in range(STOPS):
            send(terminal, f"go {number}", "value_")
            terminal.watch(0.5 + 0.03 * number)
            mark, began = len(terminal.raw), time.perf_counter()
            terminal.press("escape")
            terminal.wait_written("topped", mark)
            times.append(terminal.times[-1][0] - began)
            terminal.watch(0.3)
    return summary(times)


def fence(rate: int = 400) -> Times:
    """Measure an answer of 1,000 lines of code against the engine's time, and the delay of the event loop."""
    text = f"```python\n{code(1000)}```\n"
    answer = Answer.of(text, rate=rate)
    with engine() as set_answers:
        set_answers(answer)
        took, late = asyncio.run(_fence(text))
    ideal = sum(step.wait for step in answer.steps)
    over = round((took / ideal - 1) * 100, 2)
    return {"lines": 1000, "seconds": round(took, 2), "over_ideal_percent": over, "loop_late": summary(late)}


async def _fence(text: str) -> tuple[float, list[float]]:
    from localdflash.chat.answer_sources import SharedDaemon
    from localdflash.server.engine_spec import EngineSpec
    from localdflash.tui.app_base import ChatStart
    from localdflash.tui.chat_app import ChatApp

    late: list[float] = []

    async def tick() -> None:
        while True:
            due = time.perf_counter() + TICK
            await asyncio.sleep(TICK)
            late.append(max(time.perf_counter() - due, 0.0))

    app = ChatApp(ChatStart(SharedDaemon(EngineSpec({})), Path.cwd(), None))
    async with app.run_test(size=(100, 30)) as pilot:
        await app.talk.answerer.ready()
        await pilot.pause()
        gc.freeze()  # as the app does on a terminal
        app.ask("go")
        began, ticking = time.perf_counter(), asyncio.create_task(tick())
        while app.transcript.shown_text() != text:
            await asyncio.sleep(TICK)
        took = time.perf_counter() - began
        ticking.cancel()
    return took, late


def opening(messages: int = 1000) -> Times:
    """Measure the time from the process start to the end of a long chat on the screen."""
    with engine():
        number, last = _long_chat(messages)
        times = []
        for _ in range(OPENINGS):
            began = time.perf_counter()
            with chat("--resume", str(number)) as terminal:
                terminal.wait_written(last, 0)
                times.append(terminal.times[-1][0] - began)
    return {"messages": messages, "shown": summary(times)}


def _long_chat(messages: int) -> tuple[int, str]:
    from localdflash.chat.messages import Message
    from localdflash.chat.store import ChatStore
    from localdflash.cli.chat_command import chats_file

    store = ChatStore(chats_file(), print)
    session, parent = store.create(folder=str(Path.cwd())), None
    for number in range(messages):
        answer = number % 2
        text = f"Text.\n\n```python\n{code(12)}```\n\nmessage-{number}-ends" if answer else f"Question {number}?"
        message = Message("assistant" if answer else "user", text, finish="stop" if answer else "")
        parent = store.add(session, parent, message).id
    store.close()
    return session, f"message-{messages - 1}-ends"


def memory() -> Times:
    """Measure the memory of the chat's process over many turns; `growth` is that of the second half, in kB per turn."""
    rss_bytes = []
    with engine() as set_answers, chat() as terminal:
        terminal.wait_written(READY, 0)
        set_answers(Answer.of(f"Text.\n```python\n{code(4)}```\n"), about={"context": 1 << 30})
        for turn in range(1, TURNS + 1):
            send(terminal, f"turn {turn}", f"value_{0}")
            terminal.watch(0.02)
            if turn % (TURNS // 20) == 0:
                rss_bytes.append(terminal.process.memory_info().rss)
    half = rss_bytes[len(rss_bytes) // 2 - 1]
    growth = (rss_bytes[-1] - half) / 1024 / (TURNS / 2)
    return {"turns": TURNS, "mb": [round(size / MEGABYTE, 1) for size in rss_bytes], "growth": round(growth, 2)}


def code(lines: int) -> str:
    """Return Python code of about ten tokens per line."""
    return "".join(f"    value_{number} = compute(value_{number // 2}, {number})  # step\n" for number in range(lines))


def send(terminal: Terminal, text: str, until: str) -> None:
    """Send a message and wait for a part of its answer."""
    mark = len(terminal.raw)
    terminal.type(text)
    terminal.wait_written(text[-1], mark)
    mark = len(terminal.raw)
    terminal.press("enter")
    terminal.wait_written(until, mark)


def _echo(terminal: Terminal, letter: str) -> float:
    mark, began = len(terminal.raw), time.perf_counter()
    terminal.type(letter)
    terminal.wait_written(letter, mark)
    return terminal.times[-1][0] - began


def summary(seconds: list[float]) -> Times:
    """Return the summary of times, in milliseconds."""
    return {"count": len(seconds), **spread([duration * 1e3 for duration in seconds])}


MEASURED = {"start": start, "echo": echo, "stop": stop, "fence": fence, "opening": opening, "memory": memory}


def main() -> int:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=MEASURED, action="append")
    given = parser.parse_args()
    result: Times = {"cores": len(os.sched_getaffinity(0))}
    for name in given.only or MEASURED:
        result[name] = MEASURED[name]()
        print(name, json.dumps(result[name]))
    result_file.write(given.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
