"""Printed chat with a scripted engine: requests, output, and stored messages."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import EngineDisconnect
from localdflash.base.files import paths
from localdflash.chat.answer_sources import NamedServer, SharedDaemon
from localdflash.chat.messages import Message as StoredMessage
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.chat.store import ChatStore
from localdflash.cli.chat_command import chats_file
from localdflash.cli.console_chat import ConsoleChat, answer_once, open_chat, statistics
from localdflash.cli.output import DAEMON_RESTARTED
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import OPTIONS, ScriptedEngine, scripted
from localdflash.server.address import Address
from localdflash.server.engine_spec import EngineSpec

pytestmark = pytest.mark.transport
SHARED = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


@pytest.fixture
def open_scripted(short_home: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a chat with an engine that gives scripted answers."""
    with ExitStack() as stack:

        def open_one(*answers: Answer, source: Any = None) -> tuple[ConsoleChat, ScriptedEngine]:
            engine = stack.enter_context(scripted(*answers))
            shared = source or SharedDaemon(EngineSpec(OPTIONS))
            return stack.enter_context(open_chat(shared, None, ChatSettings(), "Be brief.")), engine

        yield open_one


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


def ask(open_scripted: ConsoleChat, text: str) -> list[str]:
    pieces: list[str] = []
    answer = open_scripted.ask(text, pieces.append)
    assert answer.text == "".join(pieces)
    return pieces


@SHARED
def test_history_is_sent_with_each_question(open_scripted: Callable[..., Any]) -> None:
    talk, engine = open_scripted(Answer.pieces("answer", " 1"), Answer.of("answer 2"))
    assert [ask(talk, text) for text in ("one", "two")] == [["answer", " 1"], ["answer 2"]]
    assert contents(engine.asked[1]) == ["Be brief.", "one", "answer 1", "two"]
    assert (engine.asked[1]["temperature"], engine.asked[1]["stream"]) == (0.0, True)
    talk.talk.start_new_chat()
    ask(talk, "three")
    assert contents(engine.asked[2]) == ["Be brief.", "three"]


WHOLE = "<think>\nwhy\n</think>\n\nyes"
THOUGHT = Answer.pieces("<thi", "nk>\nwh", "y\n</think>", "\n\nye", "s")


@SHARED
def test_thoughts_are_stored_but_not_printed(
    open_scripted: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, engine = open_scripted(THOUGHT, Answer.of("no"), THOUGHT)
    assert answer_once(talk, "one", "text") == 0
    assert capsys.readouterr().out == "yes\n"
    ask(talk, "two")
    assert contents(engine.asked[1])[1:] == ["one", WHOLE, "two"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    answer_once(talk, "three", "text")
    assert capsys.readouterr() == ("yes\n", "[thinking]\n[scripted]\n")


@SHARED
def test_json_output_has_thoughts(open_scripted: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    talk, _ = open_scripted(THOUGHT, THOUGHT, Answer.of("no"))
    answer_once(talk, "one", "json")
    document = json.loads(capsys.readouterr().out)
    assert (document["thoughts"], document["answer"]) == ("why", "yes")
    answer_once(talk, "two", "jsonl")
    *parts, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert parts == [{"thoughts": "wh"}, {"thoughts": "y"}, {"text": "ye"}, {"text": "s"}]
    answer_once(talk, "three", "json")
    assert "thoughts" not in json.loads(capsys.readouterr().out)


@SHARED
def test_repeatedly_dying_daemon_is_an_error(
    open_scripted: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    talk, engine = open_scripted(*[Answer.pieces("half", end="cut")] * 3, Answer.of("whole"))
    with pytest.raises(EngineDisconnect):
        talk.ask("one", print)
    assert capsys.readouterr() == ("half\n", f"{DAEMON_RESTARTED}\n" * 2)
    assert "".join(ask(talk, "one")) == "whole"
    assert contents(engine.asked[-1]) == ["Be brief.", "one"]


@SHARED
@pytest.mark.usefixtures("short_home")
def test_sampling_parameters_unknown_to_a_remote_server_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address(paths.daemon_socket())
    monkeypatch.setattr(Address, "of_url", lambda *_: address)
    settings = ChatSettings(top_k=5, repetition_penalty=1.2, top_p=0.5)
    with scripted(Answer.of("well")) as engine, open_chat(NamedServer("http://x"), None, settings, "") as talk:
        assert "".join(ask(talk, "one")) == "well"
    assert "top_k" not in engine.asked[0]
    err = capsys.readouterr().err
    assert "top_k, repetition_penalty" in err
    assert "top_p" not in err


@SHARED
@pytest.mark.usefixtures("short_home")
def test_chat_is_continued_and_resumed(run: Callable[..., Any]) -> None:
    with scripted(Answer.of("first"), Answer.of("second"), Answer(status=500, message="oh"), Answer.of("third")) as it:
        assert "no earlier chat in this folder" in run("chat", "-c", "-p", "one").err
        assert run("chat", "-p", "one").out == "first\n"
        assert "no earlier chat in this folder" in run("chat", "-c", "-p", "two").err  # chats of -p are not kept
        with closing(ChatStore(chats_file(), print)) as store:
            session = store.create(folder=os.getcwd(), system="Be brief.")
            question = store.add(session, None, StoredMessage("user", "one"))
            store.add(session, question.id, StoredMessage("assistant", "first", finish="stop"))
        assert run("chat", "-c", "-p", "two").out == "second\n"
        assert contents(it.asked[-1]) == ["Be brief.", "one", "first", "two"]
        assert run("chat", "--resume", session, "-p", "lost").code == 1
        assert run("chat", "--resume", session, "-p", "three", "--system", "Be long.").out == "third\n"
        assert contents(it.asked[-1]) == ["Be long.", "one", "first", "two", "second", "three"]
    with closing(ChatStore(chats_file(), print)) as store:
        stored = store.branch(session)
    assert [message.text for message in stored] == ["one", "first", "two", "second", "three", "third"]
    assert stored[-1].numbers["tokens"] > 0
    assert stored[-1].steps


def test_statistics_of_server_replies() -> None:
    assert statistics({"model": "x", "tokens": 7, "ttft_ms": 5.0}) == {"tokens": 7}
    assert statistics({"tokens": 7, "tokens_per_second": 3.25}) == {"tokens": 7, "tokens_per_second": 3.25}
    of_vllm = {"tokens": 4, "steps": 2, "tau": 2.0, "drafted": 14, "accepted": 2}
    assert statistics(of_vllm) == of_vllm
    steps = {"steps": 4, "tau": 1.5, "drafted": 6, "accepted": 2, "accept_by_slot": [0.5], "tokens_per_second": 3.26}
    document = statistics(
        {"tokens": 6, **steps, "steps_by_drafter": {"": 1, "dflash": 3}, "prompt_ms": 1.0, "model": "x"}
    )
    assert document["steps_by_drafter"] == {"none": 1, "dflash": 3}
    assert (document["ms"], document["tokens_per_second"]) == ({"prompt": 1.0, "answer": 0.0}, 3.3)
    assert "model" not in document
