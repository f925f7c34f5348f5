"""A printed chat over a scripted engine: the requests, the output, and what is kept on disk."""

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
from localdflash.cli.output import ENGINE_RESTARTED
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import OPTIONS, ScriptedEngine, scripted
from localdflash.server.address import Address
from localdflash.server.engine_spec import EngineSpec

pytestmark = pytest.mark.transport
SHARED = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")


@pytest.fixture
def talking(short_home: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a chat with an engine that gives scripted answers."""
    with ExitStack() as stack:

        def begun(*answers: Answer, source: Any = None) -> tuple[ConsoleChat, ScriptedEngine]:
            engine = stack.enter_context(scripted(*answers))
            shared = source or SharedDaemon(EngineSpec(OPTIONS))
            return stack.enter_context(open_chat(shared, None, ChatSettings(), "Be brief.")), engine

        yield begun


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


def ask(talking: ConsoleChat, text: str) -> list[str]:
    pieces: list[str] = []
    answer = talking.ask(text, pieces.append)
    assert answer.text == "".join(pieces)
    return pieces


@SHARED
def test_the_history_is_sent_with_each_question(talking: Callable[..., Any]) -> None:
    talk, engine = talking(Answer.pieces("answer", " 1"), Answer.of("answer 2"))
    assert [ask(talk, text) for text in ("one", "two")] == [["answer", " 1"], ["answer 2"]]
    assert contents(engine.asked[1]) == ["Be brief.", "one", "answer 1", "two"]
    assert (engine.asked[1]["temperature"], engine.asked[1]["stream"]) == (0.0, True)
    talk.talk.new()
    ask(talk, "three")
    assert contents(engine.asked[2]) == ["Be brief.", "three"]


WHOLE = "<think>\nwhy\n</think>\n\nyes"
THOUGHT = Answer.pieces("<thi", "nk>\nwh", "y\n</think>", "\n\nye", "s")


@SHARED
def test_thoughts_are_not_printed_and_are_kept(
    talking: Callable[..., Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk, engine = talking(THOUGHT, Answer.of("no"), THOUGHT)
    assert answer_once(talk, "one", "text") == 0
    assert capsys.readouterr().out == "yes\n"
    ask(talk, "two")
    assert contents(engine.asked[1])[1:] == ["one", WHOLE, "two"]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    answer_once(talk, "three", "text")
    assert capsys.readouterr() == ("yes\n", "[thinking]\n[scripted]\n")


@SHARED
def test_thoughts_are_named_in_json(talking: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    talk, _ = talking(THOUGHT, THOUGHT, Answer.of("no"))
    answer_once(talk, "one", "json")
    told = json.loads(capsys.readouterr().out)
    assert (told["thoughts"], told["answer"]) == ("why", "yes")
    answer_once(talk, "two", "jsonl")
    *parts, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert parts == [{"thoughts": "wh"}, {"thoughts": "y"}, {"text": "ye"}, {"text": "s"}]
    answer_once(talk, "three", "json")
    assert "thoughts" not in json.loads(capsys.readouterr().out)


@SHARED
def test_a_daemon_that_stops_again_and_again_is_an_error(
    talking: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    talk, engine = talking(*[Answer.pieces("half", end="cut")] * 3, Answer.of("whole"))
    with pytest.raises(EngineDisconnect):
        talk.ask("one", print)
    assert capsys.readouterr() == ("half\n", f"{ENGINE_RESTARTED}\n" * 2)
    assert "".join(ask(talk, "one")) == "whole"
    assert contents(engine.asked[-1]) == ["Be brief.", "one"]


@SHARED
@pytest.mark.usefixtures("short_home")
def test_a_notice_names_sampling_parameters_that_a_remote_server_does_not_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Address(paths.engine_socket())
    monkeypatch.setattr(Address, "of_url", lambda *_: there)
    settings = ChatSettings(top_k=5, repetition_penalty=1.2, top_p=0.5)
    with scripted(Answer.of("well")) as engine, open_chat(NamedServer("http://x"), None, settings, "") as talk:
        assert "".join(ask(talk, "one")) == "well"
    assert "top_k" not in engine.asked[0]
    err = capsys.readouterr().err
    assert "top_k, repetition_penalty" in err
    assert "top_p" not in err


@SHARED
@pytest.mark.usefixtures("short_home")
def test_a_chat_can_be_continued(run: Callable[..., Any]) -> None:
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
        kept = store.path(session)
    assert [message.text for message in kept] == ["one", "first", "two", "second", "three", "third"]
    assert kept[-1].numbers["tokens"] > 0
    assert kept[-1].steps


def test_statistics_are_those_that_the_server_reports() -> None:
    assert statistics({"model": "x", "tokens": 7, "ttft_ms": 5.0}) == {"tokens": 7}
    assert statistics({"tokens": 7, "tokens_per_second": 3.25}) == {"tokens": 7, "tokens_per_second": 3.25}
    steps = {"steps": 4, "tau": 1.5, "drafted": 6, "accepted": 2, "accept_by_slot": [0.5], "tokens_per_second": 3.26}
    told = statistics({"tokens": 6, **steps, "steps_by_drafter": {"": 1, "dflash": 3}, "prompt_ms": 1.0, "model": "x"})
    assert told["steps_by_drafter"] == {"none": 1, "dflash": 3}
    assert (told["ms"], told["tokens_per_second"]) == ({"prompt": 1.0, "answer": 0.0}, 3.3)
    assert "model" not in told
