"""Starting the one daemon: by many at once, for another version or other options, and where it cannot start."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory, UsageError
from localdflash.base.files import paths
from localdflash.server import spawn
from localdflash.server.address import Address
from localdflash.server.client import Client, find
from localdflash.server.spawn import connect
from localdflash.server.wanted import Wanted
from tests.support.daemons import (
    DROPPED_SOCKET,
    GPU_ENDS_LOADING,
    LONG,
    PROGRAM,
    SLOW,
    begin,
    daemons,
    killed,
    start,
    until,
)
from tests.support.gguf_files import write_header

pytestmark = [
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
EMBEDDED = {"pair": "embedded", "threads": 1}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(autouse=True)
def said(short_home: Path) -> Iterator[list[str]]:
    """What the user is told."""
    assert short_home.exists()
    lines: list[str] = []
    yield lines
    lines.clear()


def reached(wanted: Wanted, said: list[str]) -> int:
    """The process of the daemon that `connect` finds or starts."""
    return int(connect(wanted, said.append).get("/ps")["pid"])


@pytest.mark.parametrize("clients", [8, 32])
def test_clients_that_come_at_once_start_one(clients: int, short_home: Path, said: list[str]) -> None:
    with ThreadPoolExecutor(clients) as threads:
        found = [threads.submit(reached, Wanted(EMBEDDED), said) for _ in range(clients)]
        assert len({future.result(60) for future in found}) == 1
    assert len(daemons(short_home)) == 1
    assert paths.engine_log().read_text().count("listening on") == 1


def test_processes_that_come_at_once_start_one(short_home: Path) -> None:
    program = (
        "from localdflash.server.spawn import connect; from localdflash.server.wanted import Wanted;"
        f"print(connect(Wanted({EMBEDDED!r}), print).get('/ps')['pid'])"
    )
    started = [begin(program=program) for _ in range(8)]
    assert [process.wait(60) for process in started] == [0] * 8
    (one,) = [daemon for daemon in daemons(short_home) if "--log" in daemon.cmdline()]
    assert one.is_running()


def test_one_that_runs_is_found_and_not_started(said: list[str]) -> None:
    process = start()
    assert reached(Wanted(EMBEDDED), said) == process.pid
    assert said == []


def test_a_stale_socket_is_no_obstacle(said: list[str]) -> None:
    first = start()
    killed(first)
    assert reached(Wanted(EMBEDDED), said) != first.pid


def test_it_lives_on_its_own(short_home: Path, said: list[str]) -> None:
    pid = reached(Wanted(EMBEDDED), said)
    (daemon,) = daemons(short_home)
    assert os.getsid(pid) == pid
    assert daemon.cwd() == "/"
    assert daemon.terminal() is None
    assert daemon.environ()["PYTHONSAFEPATH"] == "1"
    assert [os.readlink(f"/proc/{pid}/fd/{number}") for number in (0, 1)] == ["/dev/null"] * 2
    assert os.readlink(f"/proc/{pid}/fd/2") == str(paths.engine_log())


def test_it_leaves_when_idle(short_home: Path, said: list[str]) -> None:
    reached(Wanted(EMBEDDED, idle=0.01), said)
    until(lambda: not daemons(short_home))
    assert find() is None


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"pair": "embeded"}, ModelError, "no pair 'embeded'; did you mean 'embedded'?"),
        ({"pair": "/none/x.gguf"}, ModelError, "/none/x.gguf"),
        ({"pair": "embedded", "context": 7}, UsageError, "context of 7 tokens"),
    ],
)
def test_one_that_cannot_start_says_why(
    options: dict[str, object], kind: type[LocaldflashError], message: str, short_home: Path, said: list[str]
) -> None:
    for _ in range(2):
        with pytest.raises(kind) as caught:
            connect(Wanted(options), said.append)
        assert message in str(caught.value)
        assert "localdflash:" not in str(caught.value)
    assert type(caught.value) is kind
    assert daemons(short_home) == []


def test_one_that_cannot_load_says_why_after_a_while_too(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    slow = (
        "import time; from localdflash.loading.load_pair import LoadedPair\n"
        "from localdflash.base.errors import OutOfMemory\n"
        "def load(*_): time.sleep(1.5); raise OutOfMemory('too large for this machine')\n"
        "LoadedPair.__init__ = load\n"
    )
    monkeypatch.setattr(spawn, "PROGRAM", slow + PROGRAM)
    with ThreadPoolExecutor(2) as threads:
        for found in [threads.submit(connect, Wanted(EMBEDDED), said.append) for _ in range(2)]:
            with pytest.raises(OutOfMemory, match="too large for this machine"):
                found.result(60)


def test_a_gpu_that_ends_each_one_is_left_alone_in_the_end(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", GPU_ENDS_LOADING + PROGRAM)
    about = connect(Wanted(EMBEDDED | {"backend": "auto"}), said.append).get("/ps")
    again = "A GPU ended the engine while it was loading: started again ..."
    assert said[:-1] == [again, again]
    assert "not a GPU through llama.cpp: it ended the engine 2 times today" in said[-1]
    assert about["device"] == "cpu"


def test_a_gpu_that_was_asked_for_is_tried_twice(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", GPU_ENDS_LOADING + PROGRAM)
    with pytest.raises(LocaldflashError, match="the engine was ended by SIGABRT"):
        connect(Wanted(EMBEDDED | {"backend": "auto", "device": "gpu"}), said.append)
    assert len(said) == 2


def test_one_that_leaves_while_it_is_found_is_started_again(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    first, ready = start(), spawn._becomes_ready

    def leaves(client: Client, waiting: Any) -> bool:
        was = ready(client, waiting)
        if first.poll() is None:
            killed(first)
        return was

    monkeypatch.setattr(spawn, "_becomes_ready", leaves)
    assert reached(Wanted(EMBEDDED), said) != first.pid


def test_what_takes_the_time_is_told_and_can_be_ended(short_home: Path, said: list[str]) -> None:
    stages: list[str] = []

    def look(stage: str) -> None:
        stages.append(stage)
        if stage == spawn.LOADING:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        connect(Wanted(EMBEDDED), said.append, look)
    assert {*stages[:-1]} == {spawn.STARTING}
    assert len(daemons(short_home)) == 1
    assert reached(Wanted(EMBEDDED), said)


def test_one_that_never_listens_is_given_up(short_home: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(spawn, "LISTENS", 0.3)
    with pytest.raises(LocaldflashError, match="does not listen: its log is"):
        connect(Wanted(EMBEDDED), said.append)
    assert daemons(short_home) == []


def test_whoever_waited_for_long_may_still_start_one(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    def began_long_ago(self: spawn._Waiting, say: Callable[[str], None], look: spawn.Look) -> None:
        self._began, self.say, self._told = time.monotonic() - 10 * spawn.LISTENS, say, True
        self._look = look

    monkeypatch.setattr(spawn._Waiting, "__init__", began_long_ago)
    assert reached(Wanted(EMBEDDED), said)


def test_one_that_dies_without_a_word_is_told_of_with_its_log(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    monkeypatch.setattr(spawn, "PROGRAM", "import os; os._exit(7)")
    with pytest.raises(LocaldflashError, match=r"ended without a word; its log is .*engine\.log"):
        connect(Wanted(EMBEDDED), said.append)


# Another version


def test_an_idle_one_of_another_version_is_replaced(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    first = start()
    monkeypatch.setattr(spawn, "own_version", lambda: "9.9")
    second = reached(Wanted(EMBEDDED), said)
    assert first.wait(20) == 0
    assert second != first.pid
    assert "started again as 9.9" in said[0]


def test_a_busy_one_of_another_version_is_left_alone(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    first = start(program=SLOW + PROGRAM)
    monkeypatch.setattr(spawn, "own_version", lambda: "9.9")
    answer = Client(Address(paths.engine_socket())).stream("/v1/chat/completions", {**CHAT, **LONG})
    next(answer)
    with pytest.raises(LocaldflashError, match=r"this is 9\.9, and it is busy: try again"):
        connect(Wanted(EMBEDDED), said.append)
    assert first.poll() is None
    assert next(answer)
    answer.close()


# Other options


def test_what_the_user_gives_has_to_hold(said: list[str]) -> None:
    process = start()
    wanted = Wanted({**EMBEDDED, "context": 512, "kv": "int8"}, given={"context"})
    about = connect(wanted, said.append).get("/ps")
    assert (about["pid"], about["context"], about["options"]["kv"]) == (process.pid, 512, "f16")
    assert said == ["The engine loads anew: context 512 ..."]
    assert reached(wanted, said) == process.pid
    assert len(said) == 1


def test_what_the_user_does_not_give_is_as_it_is(said: list[str]) -> None:
    start()
    assert reached(Wanted({**EMBEDDED, "context": 256}), said)
    assert connect(Wanted(EMBEDDED), said.append).get("/ps")["context"] == 1024
    assert said == []


def test_each_role_gets_its_pair_and_leaves_the_other_alone(said: list[str], tiny_pair: Path) -> None:
    tiny = str(tiny_pair / "target.gguf")
    editor = connect(Wanted(EMBEDDED, role="completion"), said.append)
    before = editor.get("/ps?role=completion")
    assert [one["roles"] for one in editor.get("/ps")["pairs"]] == [["completion"]]
    wanted = Wanted({**EMBEDDED, "pair": tiny}, role="chat")
    assert connect(wanted, said.append).get("/ps?role=chat")["pair"] == tiny
    assert connect(Wanted(EMBEDDED, role="chat"), said.append).get("/ps?role=chat")["pair"] == tiny, "it was chosen"
    chosen = Wanted({**EMBEDDED, "context": 512}, given={"pair", "context"}, role="chat")
    assert connect(chosen, said.append).get("/ps?role=chat")["context"] == 512
    assert said == ["The engine loads embedded: context 512 ..."]
    after = editor.get("/ps?role=completion")
    assert (after["pair"], after["context"], after["since"]) == ("embedded", 1024, before["since"])


def test_a_pair_that_cannot_fill_in_starts_no_engine_for_completions(said: list[str], tmp_path: Path) -> None:
    path = write_header(tmp_path / "talks.gguf", "a", "b")
    with pytest.raises(ModelError, match=r"talks\.gguf: .*no fill-in-the-middle tokens"):
        connect(Wanted({**EMBEDDED, "pair": str(path)}, role="completion"), said.append)
    assert find() is None


def test_a_foreground_engine_has_both_pairs_of_the_settings(tiny_pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = str(tiny_pair / "target.gguf")
    monkeypatch.setenv("LOCALDFLASH_CHAT_PAIR", tiny)
    start()
    client = find()
    assert client
    until(lambda: [one["pair"] for one in client.get("/ps")["pairs"]] == [tiny, "embedded"])


def test_a_pair_that_cannot_be_had_changes_nothing(said: list[str]) -> None:
    start()
    with pytest.raises(ModelError, match="did you mean 'embedded'"):
        connect(Wanted({"pair": "embeded"}, given={"pair"}), said.append)
    assert reached(Wanted(EMBEDDED), said)


def test_stopping_waits_until_it_is_gone() -> None:
    process = start()
    client = find()
    assert client
    spawn.stop(client)
    assert find() is None
    assert process.wait(10) == 0


def test_a_killed_starter_leaves_no_lock(short_home: Path, said: list[str]) -> None:
    program = (
        "import os, signal; from localdflash.server import spawn;"
        "spawn._spawn = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        f"spawn.connect(spawn.Wanted({EMBEDDED!r}), print)"
    )
    assert begin(program=program).wait(30) == -signal.SIGKILL
    assert (short_home / "runtime" / "engine.start.lock").exists()
    assert reached(Wanted(EMBEDDED), said)
