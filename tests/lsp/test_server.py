"""Completions in an editor, over the wire, from an engine that knows what comes: what is inserted where, and what gets
no answer at all.
"""

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
    """The text of the one item."""
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


async def test_an_answer_replaces_what_the_editor_closed_and_it_closes_again(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("add(1, 2))", "add())"))
        answer = await e.ask(9, 10)
        assert inserted(answer) == "print(add(1, 2))"
        assert answer.items[0].range.end.character == len("print(add())")


async def test_the_rest_of_a_line_that_is_more_than_closed_stays(editor: Any) -> None:
    async with editor(oracle=TEXT.replace("2))", "2))  # three")) as e:
        e.open(TEXT.replace("add(1, 2))", "add())  # three"))
        answer = await e.ask(9, 10)
        assert inserted(answer) == "print(add(1, 2"
        assert answer.items[0].range.end.character == 10


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 23), ("utf-16", 21), ("utf-32", 20)])
async def test_columns_are_in_the_units_that_were_agreed(editor: Any, encoding: str, units: int) -> None:
    line = "    x = '😋'; return "
    text = TEXT + f"\ndef smile():\n{line}x + x\n"
    async with editor(encodings=(encoding,), oracle=text) as e:
        assert e.capabilities.position_encoding == encoding
        e.open(text.replace(line + "x + x", "    "))
        e.edit(12, 4, line.strip() + " ")
        answer = await e.ask(12, units)
        assert inserted(answer) == line + "x + x"
        assert answer.items[0].range.end.character == units


async def test_a_newer_request_answers_the_older_ones_with_nothing(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=20, options={"deadlineMs": 9_000}) as e:
        e.open(HOLE)
        *older, newest = await asyncio.gather(*(e.ask(4, 4) for _ in range(9)))
        assert older == [None] * 8
        assert inserted(newest) == BODY


async def test_an_answer_to_a_text_that_changed_is_not_given(editor: Any) -> None:
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


async def test_clients_that_ask_for_it_see_an_answer_grow(editor: Any) -> None:
    async with editor(oracle=TEXT, delay=50, options={"push": True}) as e:
        e.open(HOLE)
        first, *_ = BODY.split("\n")
        assert inserted(await e.ask(4, 4)) == first
        await until(lambda: e.updates and e.updates[-1].items[0].insertText == BODY)
        texts = [update.items[0].insertText for update in e.updates]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(texts))
        assert {update.textDocument.version for update in e.updates} == {0}
        assert {update.position.line for update in e.updates} == {4}


async def test_a_selected_item_of_a_menu_is_what_the_answer_goes_on_from(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("total = first + second", "total = fi"))
        place = types.Range(types.Position(5, 12), types.Position(5, 14))
        answer = await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "first"))
        (item,) = answer.items
        assert item.insert_text == "first + second"
        assert item.range == place


async def test_a_selected_item_is_not_made_a_longer_word(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("total = first + second", "total = fi"))
        place = types.Range(types.Position(5, 12), types.Position(5, 14))
        assert await e.ask(5, 14, selected=types.SelectedCompletionInfo(place, "fir")) is None


async def test_who_asks_by_hand_gets_an_answer_within_a_word_too(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(TEXT.replace("first + second", "fsecond"))
        assert await e.ask(5, 13) is None
        assert inserted(await e.ask(5, 13, manual=True)) == "    total = first +"


async def test_what_is_accepted_and_refused_is_counted(editor: Any) -> None:
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


async def test_a_part_that_comes_in_at_once_counts_as_accepted(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        await e.ask(4, 4)
        e.edit(4, 4, '"')
        assert (await e.status()).accepted == 0
        e.edit(4, 5, '""Return')
        assert (await e.status()).accepted == 1


@pytest.mark.parametrize("uri", ["untitled:Untitled-1", "file:///gone/x.py"])
async def test_documents_that_are_no_files_here(editor: Any, uri: str) -> None:
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
async def test_what_nobody_writes_by_hand_is_met_with_silence(editor: Any, text: str) -> None:
    async with editor(oracle=TEXT) as e:
        e.open(text)
        assert await e.ask(4, 4) is None
        assert (await e.status()).kind == ("Normal" if not text else "Inactive")
        e.close()
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
        assert (await e.status()).kind == "Normal"
        assert e.said == []


async def test_editors_with_inline_completions_get_no_list(editor: Any) -> None:
    async with editor(oracle=TEXT) as e:
        assert e.capabilities.completion_provider is None


async def test_options_that_are_wrong_are_named_once(editor: Any) -> None:
    async with editor(oracle=TEXT, options={"push": "yes", "status": 1, "deadlineMs": True}) as e:
        e.open(HOLE)
        assert inserted(await e.ask(4, 4)) == BODY
        assert [said.split(": ")[1] for said in e.said] == [
            "initializationOptions.push",
            "initializationOptions.status",
            "initializationOptions.deadlineMs",
        ]
