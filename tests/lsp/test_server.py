"""Completions in an editor, over the wire, from an engine that knows the text."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from tests.lsp.conftest import until
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]

TEXT = '''import os


def add(first, second):
    """Return the sum."""
    total = first + second
    return total


print(add(1, 2))
'''
BODY = '    """Return the sum."""\n    total = first + second\n    return total'
HOLE = TEXT.replace(BODY + "\n", "    \n")  # the cursor is at 4:4


def inserted(answer: Any) -> str:
    (item,) = answer.items
    return str(item.insert_text)


async def test_an_answer_replaces_the_line_up_to_the_cursor(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        answer = await e.ask(4, 4)
        assert inserted(answer) == BODY
        (item,) = answer.items
        assert (item.range.start.line, item.range.start.character) == (4, 0)
        assert (item.range.end.line, item.range.end.character) == (4, 4)
        e.edit(4, 4, '"""Re')
        assert inserted(await e.ask(4, 9)) == BODY


@pytest.mark.parametrize(
    ("rest", "text", "end"), [("", "print(add(1, 2))", len("print(add())")), ("  # three", "print(add(1, 2", 10)]
)
async def test_closing_brackets_of_the_editor_are_replaced(editor: Any, rest: str, text: str, end: int) -> None:
    whole = TEXT.replace("2))", "2))" + rest)
    async with editor(oracle=whole) as e:
        e.open(whole.replace("add(1, 2))", "add())"))
        answer = await e.ask(9, 10)
        assert inserted(answer) == text
        assert answer.items[0].range.end.character == end


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 23), ("utf-16", 21), ("utf-32", 20)])
async def test_columns_are_in_the_agreed_encoding(editor: Any, encoding: str, units: int) -> None:
    line = "    x = '😋'; return "
    text = TEXT + f"\ndef smile():\n{line}x + x\n"
    async with editor(encodings=(encoding,), oracle=text) as e:
        assert e.capabilities.position_encoding == encoding
        e.open(text.replace(line + "x + x", "    "))
        e.edit(12, 4, line.strip() + " ")
        answer = await e.ask(12, units)
        assert inserted(answer) == line + "x + x"
        assert answer.items[0].range.end.character == units


async def test_older_requests_get_no_answer(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=20, options={"deadlineMs": 9_000}) as e:
        e.open(HOLE)
        *older, newest = await asyncio.gather(*(e.ask(4, 4) for _ in range(9)))
        assert older == [None] * 8
        assert inserted(newest) == BODY


async def test_a_request_for_an_older_text_gets_no_answer(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=50) as e:
        e.open(HOLE)
        stale = asyncio.ensure_future(e.ask(4, 4))
        await asyncio.sleep(0)
        e.edit(0, 0, "# one more line\n")
        assert await stale is None


async def test_a_request_that_is_cancelled_stops_the_engine(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=60_000, options={"deadlineMs": 10_000}) as e:
        e.open(HOLE)
        waiting = asyncio.ensure_future(e.ask(4, 4))
        with daemons.client() as client:
            await until(lambda: client.get("/oracle")["live"])
            (key,) = e.client.protocol._request_futures
            e.client.cancel_request(types.CancelParams(key))
            async with asyncio.timeout(30):
                while (await asyncio.to_thread(client.get, "/oracle"))["live"]:
                    await asyncio.sleep(0.01)
        with pytest.raises(JsonRpcException):
            await waiting


async def test_an_answer_grows_for_clients_with_push(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=50, options={"push": True}) as e:
        e.open(HOLE)
        first, *_ = BODY.split("\n")
        assert inserted(await e.ask(4, 4)) == first
        await until(lambda: e.updates and e.updates[-1].items[0].insertText == BODY)
        texts = [update.items[0].insertText for update in e.updates]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
        assert {update.textDocument.version for update in e.updates} == {0}
        assert {update.position.line for update in e.updates} == {4}


async def test_an_answer_continues_the_selected_item_of_a_menu_but_not_its_word(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("total = first + second", "total = fi"))
        place = types.Range(types.Position(5, 12), types.Position(5, 14))
        (item,) = (await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "first"))).items
        assert (item.insert_text, item.range) == ("first + second", place)
        assert await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "fir")) is None


async def test_by_hand_there_is_an_answer_within_a_word(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("first + second", "fsecond"))
        assert await e.ask(5, 13) is None
        assert inserted(await e.ask(5, 13, manual=True)) == "    total = first +"


async def test_accepted_and_refused_suggestions_are_counted(editor: Any) -> None:
    async with editor(oracle=TEXT, options={"status": True}) as e:
        e.open(HOLE)
        (item,) = (await e.ask(4, 4)).items
        e.tell("textDocument/didShowCompletion", item)
        e.tell("textDocument/didPartiallyAcceptCompletion", item, acceptedLength=9)
        status = await e.status()
        assert (status.kind, status.shown, status.accepted) == ("Normal", 1, 1)
        await e.client.workspace_execute_command_async(
            types.ExecuteCommandParams(item.command.command, list(item.command.arguments))
        )
        assert (await e.status()).accepted == 1  # the same one
        e.tell("localdflash/didRejectCompletion", item)
        assert await e.ask(4, 4) is None
        await until(lambda: e.statuses)
        assert e.statuses[-1].tau == 3.0
        assert e.statuses[-1].tokensPerSecond == 1000.0


async def test_several_characters_at_once_count_as_accepted(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        await e.ask(4, 4)
        e.edit(4, 4, '"')
        assert (await e.status()).accepted == 0
        e.edit(4, 5, '""Return')
        assert (await e.status()).accepted == 1


@pytest.mark.parametrize("uri", ["untitled:Untitled-1", "file:///gone/x.py"])
async def test_documents_that_are_not_on_disk(editor: Any, uri: str) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE, uri)
        assert inserted(await e.ask(4, 4, uri=uri)) == BODY
        e.close(uri)
        assert await e.ask(4, 4, uri=uri) is None


@pytest.mark.parametrize(
    "text",
    ["\0" + HOLE, HOLE + "x" * 6_000 + "\n", HOLE + "# one more line\n" * 300_000, ""],
    ids=["binary", "one long line", "too large", "empty"],
)
async def test_generated_and_binary_documents_get_nothing(editor: Any, text: str) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(text)
        assert await e.ask(4, 4) is None
        assert (await e.status()).kind == ("Normal" if not text else "Inactive")
        e.close()
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
        assert (await e.status()).kind == "Normal"
        assert e.said == []


async def test_wrong_options_are_named_once(editor: Any) -> None:
    async with editor(oracle=TEXT, options={"push": "yes", "status": 1, "deadlineMs": True}) as e:
        assert e.capabilities.completion_provider is None  # which editors without inline completions get
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
        options = [said.split(": ")[1].removeprefix("initializationOptions.") for said in e.said]
        assert options == ["push", "status", "deadlineMs"]
