"""Two chats with two models and one daemon, over its socket: who answers, and what becomes of the other's model."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelBusy, ModelNotLoaded
from localdflash.base.files import paths
from localdflash.server.client import Client
from localdflash.server.spawn import connect
from localdflash.server.wanted import Wanted
from tests.support.daemons import DROPPED_SOCKET, LONG, ONE_PAIR, PROGRAM, SLOW, client, start, until

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
CHAT, SHORT = {"messages": [{"role": "user", "content": "Hello"}]}, {"max_tokens": 4}
NARROW = SLOW + ONE_PAIR + PROGRAM


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


def pairs(asked: Client) -> dict[str, list[str]]:
    """What is loaded: for each pair its roles."""
    return {one["pair"]: one["roles"] for one in asked.get("/ps")["pairs"]}


def answered_by(asked: Client, pair: str) -> str:
    """Who answers a chat that wants this pair."""
    return str(asked.post("/v1/chat/completions", {**CHAT, **SHORT, "model": pair})["model"])


@contextmanager
def answering(asked: Client, pair: str) -> Iterator[Any]:
    """A long answer by this pair, which has begun."""
    answer = asked.stream("/v1/chat/completions", {**CHAT, **LONG, "model": pair})
    assert next(answer)["model"] == pair
    try:
        yield answer
    finally:
        answer.close()


def test_where_there_is_room_each_chat_keeps_its_model(tiny: str) -> None:
    start("--role", "chat")
    with client() as one, client() as another:
        assert another.post("/load", {"pair": tiny, "role": "chat"})["pair"] == tiny
        assert answered_by(one, "embedded") == "embedded"
        assert answered_by(another, tiny) == tiny
        assert answered_by(one, "embedded") == "embedded"
        assert pairs(one) == {tiny: ["chat"], "embedded": []}
        assert one.post("/v1/chat/completions", {**CHAT, **SHORT})["model"] == tiny, "the newest, if nobody is named"
        assert one.post("/load", {"pair": "embedded", "role": "chat"})["pair"] == "embedded"
        assert pairs(one) == {"embedded": ["chat"], tiny: []}


def test_a_model_that_answers_another_chat_is_not_taken(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    with client() as one, client() as another, answering(one, "embedded") as answer:
        with pytest.raises(ModelBusy, match="embedded is answering in another chat"):
            another.post("/load", {"pair": tiny, "role": "chat", "others": "refuse"})
        assert next(answer)["model"] == "embedded"
        assert pairs(one) == {"embedded": ["chat"]}


def test_what_is_read_ahead_is_no_answer(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    with client() as one, client() as another, ThreadPoolExecutor(1) as threads:
        long = {"messages": [{"role": "user", "content": "word " * 700}], "max_tokens": 0}
        reading = threads.submit(one.post, "/v1/chat/completions", long)
        assert another.post("/load", {"pair": tiny, "role": "chat", "others": "refuse"})["pair"] == tiny
        with suppress(ModelNotLoaded):  # where the other model came first
            reading.result(30)


def test_a_switch_waits_for_the_answer_under_way(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    with client() as one, client() as another, client() as third, ThreadPoolExecutor(2) as threads:
        with answering(one, "embedded") as answer:
            loading = threads.submit(another.post, "/load", {"pair": tiny, "role": "chat", "others": "wait"})
            time.sleep(0.5)
            later = threads.submit(third.post, "/v1/chat/completions", {**CHAT, **SHORT})
            assert next(answer)["model"] == "embedded"
            assert not loading.done()
        assert loading.result(30)["pair"] == tiny
        assert later.result(30)["model"] == tiny, "it came after the switch, and named nobody"
        with pytest.raises(ModelNotLoaded, match=r"'embedded' is not loaded, .*target\.gguf' is"):
            answered_by(one, "embedded")


def test_a_third_chat_is_told_who_waits(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    with client() as one, client() as another, client() as third, ThreadPoolExecutor(1) as threads:
        with answering(one, "embedded"):
            loading = threads.submit(another.post, "/load", {"pair": tiny, "role": "chat"})
            time.sleep(0.5)
            with pytest.raises(ModelBusy, match="embedded is answering, and another chat waits for its place"):
                third.post("/load", {"pair": "embedded", "role": "chat", "context": 512, "others": "refuse"})
        assert loading.result(30)["pair"] == tiny


def test_a_switch_may_end_the_answer_under_way(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    with client() as one, client() as another, answering(one, "embedded") as answer:
        assert another.post("/load", {"pair": tiny, "role": "chat", "others": "end"})["pair"] == tiny
        with pytest.raises(LocaldflashError, match="embedded made room for another chat's model"):
            list(answer)
        assert answered_by(another, tiny) == tiny


DYING = """
import sys
from pathlib import Path
from localdflash.server.address import Address
from localdflash.server.client import Client
print("asks", flush=True)
Client(Address(Path(sys.argv[1]))).post("/load", {"pair": sys.argv[2], "role": "chat"})
"""


def test_a_client_that_died_switches_nothing(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    command = [sys.executable, "-P", "-c", DYING, str(paths.engine_socket()), tiny]
    with client() as one, ThreadPoolExecutor(1) as threads:
        with answering(one, "embedded"), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as dying:
            assert dying.stdout
            assert dying.stdout.readline() == "asks\n"
            time.sleep(0.5)  # it waits in the daemon
            dying.kill()
            dying.wait()
            later = threads.submit(answered_by, one, "embedded")
        assert later.result(10) == "embedded"
        time.sleep(0.5)
        assert pairs(one) == {"embedded": ["chat"]}


def test_the_larger_model_leaves_first(tiny: str, tiny_pair: Path, tmp_path: Path) -> None:
    two = ONE_PAIR.replace("if held:", "if len(held) > 1:")
    start("--role", "chat", program=two + PROGRAM)
    third = tmp_path / "third.gguf"
    third.write_bytes((tiny_pair / "target.gguf").read_bytes())
    with client() as one:
        one.post("/load", {"pair": tiny, "role": "chat"})
        assert set(pairs(one)) == {"embedded", tiny}
        one.post("/load", {"pair": str(third), "role": "chat", "others": "refuse"})
        assert set(pairs(one)) == {str(third), tiny}, "embedded is the larger one"


def test_completions_of_one_come_between_the_steps_of_both_chats(tiny: str) -> None:
    start("--role", "completion", program=SLOW + PROGRAM)
    place = {"path": "a.py", "prefix": "def add(a, b):\n    return ", "suffix": "\n", "max_tokens": 4, "stream": False}
    with client() as one, client() as another, client() as editor:
        one.post("/load", {"pair": tiny, "role": "chat"})
        with answering(one, tiny) as answer, ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(answered_by, another, "embedded")
            for _ in range(3):
                assert editor.post("/complete", place)["model"] == "embedded"
            assert next(answer)["model"] == tiny
            answer.close()
            assert waiting.result(30) == "embedded"


def test_a_chat_finds_its_model_loaded_beside_another(tiny: str) -> None:
    said: list[str] = []
    chat = {"pair": "embedded", "threads": 1}
    one = connect(Wanted(chat, role="chat"), said.append)
    connect(Wanted(chat | {"pair": tiny}, given={"pair"}, role="chat"), said.append)
    since = {about["pair"]: about["since"] for about in one.get("/ps")["pairs"]}
    connect(Wanted(chat, given={"pair"}, role="chat"), said.append)
    assert {about["pair"]: about["since"] for about in one.get("/ps")["pairs"]} == since


def test_a_chat_that_starts_waits_for_an_answer_and_says_so(tiny: str) -> None:
    start("--role", "chat", program=NARROW)
    said: list[str] = []
    wanted = Wanted({"pair": tiny, "threads": 1}, given={"pair"}, role="chat")
    with client() as one, ThreadPoolExecutor(1) as threads:
        with answering(one, "embedded"):
            connecting = threads.submit(connect, wanted, said.append)
            until(lambda: len(said) == 2, 10)
            assert not connecting.done()
        connecting.result(30)
        assert said[:2] == [
            f"The engine loads {tiny} ...",
            f"embedded is answering in another chat: {tiny} is loaded when it is done ...",
        ]
        assert pairs(one) == {tiny: ["chat"]}
