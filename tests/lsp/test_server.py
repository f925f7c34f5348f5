"""Completions in an editor, over the wire: what is inserted where, and which requests get no answer."""

import asyncio
from typing import Any

import psutil
import pytest

from tests import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

SOURCE = 'def add(first, second):\n    """Return the sum of two numbers."""\n    \n'


def inserted(answer: Any) -> str:
    """The text of the one item."""
    (item,) = answer.items
    return str(item.insert_text)


def test_a_completion_replaces_the_line_up_to_the_cursor(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open(SOURCE)
            answer = await e.ask(2, 4)
            assert inserted(answer).startswith("    ")
            assert inserted(answer).strip()
            (item,) = answer.items
            assert (item.range.start.line, item.range.start.character) == (2, 0)
            assert (item.range.end.line, item.range.end.character) == (2, 4)

    asyncio.run(run())


def test_what_was_typed_is_part_of_the_item(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open(SOURCE)
            await e.ask(2, 4)
            e.edit(2, 4, "return first")
            assert inserted(await e.ask(2, 16)).startswith("    return first")

    asyncio.run(run())


def test_in_the_middle_of_a_line_only_the_line_is_completed(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open("import os\n\nnames = sorted(os.listdir()\nprint(names)\n")
            answer = await e.ask(2, 14)
            assert answer is None or "\n" not in inserted(answer)

    asyncio.run(run())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
def test_columns_are_in_the_units_that_were_agreed(editor: Any, encoding: str) -> None:
    async def run() -> None:
        async with editor(encodings=(encoding,)) as e:
            e.open("# 😋 é\n" + SOURCE)
            column = {"utf-8": 9, "utf-16": 6, "utf-32": 5}[encoding]
            e.edit(0, column, " 錯")
            line = "    x = '😋'; return "
            e.edit(3, 4, line.strip() + " ")
            size = {"utf-8": 24, "utf-16": 22, "utf-32": 21}[encoding]
            answer = await e.ask(3, size)
            if answer is not None:
                (item,) = answer.items
                assert item.insert_text.startswith(line)
                assert item.range.end.character == size

    asyncio.run(run())


def test_a_newer_request_answers_the_older_one_with_nothing(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open(SOURCE)
            alone = inserted(await e.ask(2, 4))  # and the engine is there
            *older, newest = await asyncio.gather(*(e.ask(2, 4) for _ in range(9)))
            assert older == [None] * 8
            assert inserted(newest) == alone

    asyncio.run(run())


def test_an_answer_to_a_text_that_changed_is_not_given(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open(SOURCE)
            await e.ask(2, 4)
            stale = asyncio.ensure_future(e.ask(2, 4))
            await asyncio.sleep(0)
            e.edit(0, 0, "# one more line\n")
            assert await stale is None

    asyncio.run(run())


def test_an_unknown_document_and_a_pair_that_is_not_here(editor: Any) -> None:
    async def run() -> None:
        async with editor("--pair", "qwen3-8b") as e:
            assert await e.ask(0, 0) is None
            e.open(SOURCE)
            assert await e.ask(2, 4) is None
            assert await e.ask(2, 4) is None  # and once is enough
            assert len(e.said) == 1
            assert "localdflash models pull qwen3-8b" in e.said[0]

    asyncio.run(run())


def test_an_engine_that_was_killed_is_started_again(editor: Any) -> None:
    async def run() -> None:
        async with editor() as e:
            e.open(SOURCE)
            whole = inserted(await e.ask(2, 4))
            with daemons.client() as client:
                pid = client.get("/ps")["pid"]
            psutil.Process(pid).kill()
            assert inserted(await e.ask(2, 4)) == whole

    asyncio.run(run())
