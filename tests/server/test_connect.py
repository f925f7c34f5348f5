"""`ensure_daemon` with a running daemon, here on a thread: options that must match, loaded pairs, waiting."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError, ModelError, OutOfMemory
from localdflash.base.files import paths
from localdflash.engine.host_pair import HostPair
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server import spawn
from localdflash.server.address import Address
from localdflash.server.api.metrics import Metrics
from localdflash.server.client import Client
from localdflash.server.engine_spec import ROLES, EngineSpec, PairRole
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.sockets import listening_socket, prepare_folder
from localdflash.server.spawn import ensure_daemon
from localdflash.server.worker import PairWorker
from tests.support.daemons import DROPPED_SOCKET, unix_only, until
from tests.support.served import delayed, serving

pytestmark = [
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
    unix_only,
]
EMBEDDED = {"pair": "embedded", "threads": 1}
LONG = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 900, "temperature": 3.0, "seed": 1}


@pytest.fixture
def run() -> Iterator[Callable[..., Engines]]:
    """Start an engine at the socket with the embedded pair for some roles."""
    with ExitStack() as stack:

        def started(*roles: PairRole) -> Engines:
            path = paths.daemon_socket()
            prepare_folder(path)
            worker = PairWorker(Options("embedded", "llama.cpp", threads=1), 8_000_000, 4, Metrics().observe)
            engines = Engines(worker, roles or ROLES)
            stack.callback(engines.close)
            stack.enter_context(serving(create_app(engines), stack.enter_context(listening_socket(path))))
            engines.start()
            return engines

        yield started


@pytest.fixture
def tiny(tiny_pair: Path) -> str:
    return str(tiny_pair / "target.gguf")


@pytest.fixture
def said() -> list[str]:
    return []


def answer_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start an answer that lasts for as long as it is read."""
    monkeypatch.setattr(HostPair, "step", delayed(0.02, HostPair.step))
    answer = Client(Address(paths.daemon_socket())).stream("/v1/chat/completions", {**LONG, "stream": True})
    next(answer)
    return answer


def test_what_the_user_gives_has_to_hold_and_all_else_is_as_it_is(run: Any, said: list[str]) -> None:
    run()
    assert ensure_daemon(EngineSpec({**EMBEDDED, "context": 256}), said.append).get("/ps")["context"] == 1024
    assert said == []
    wanted = EngineSpec({**EMBEDDED, "context": 512, "kv": "int8"}, given={"context"})
    for _ in range(2):
        about = ensure_daemon(wanted, said.append).get("/ps")
        assert (about["context"], about["options"]["kv"]) == (512, "auto")
        assert said == ["reloading the pair (context 512) ..."]
    with pytest.raises(ModelError, match="did you mean 'embedded'"):
        ensure_daemon(EngineSpec({"pair": "embeded"}, given={"pair"}), said.append)
    assert ensure_daemon(EngineSpec(EMBEDDED), said.append).get("/ps")["context"] == 512


def test_each_role_gets_its_pair_and_leaves_the_other_alone(run: Any, said: list[str], tiny: str) -> None:
    run("completion")
    editor = ensure_daemon(EngineSpec(EMBEDDED, role="completion"), said.append)
    before = editor.get("/ps?role=completion")
    assert [one["roles"] for one in editor.get("/ps")["pairs"]] == [["completion"]]
    wanted = EngineSpec({**EMBEDDED, "pair": tiny}, role="chat")
    assert ensure_daemon(wanted, said.append).get("/ps?role=chat")["pair"] == tiny
    assert ensure_daemon(EngineSpec(EMBEDDED, role="chat"), said.append).get("/ps?role=chat")["pair"] == tiny, (
        "it was chosen"
    )
    chosen = EngineSpec({**EMBEDDED, "context": 512}, given={"pair", "context"}, role="chat")
    assert ensure_daemon(chosen, said.append).get("/ps?role=chat")["context"] == 512
    assert said == ["loading embedded (context 512) ..."]
    after = editor.get("/ps?role=completion")
    assert (after["pair"], after["context"], after["since"]) == ("embedded", 1024, before["since"])


def test_a_chat_that_starts_waits_for_an_answer_and_says_so(
    run: Any, said: list[str], tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = run("chat")
    ensure_daemon(EngineSpec(EMBEDDED), said.append)

    def load(options: Options) -> LoadedPair:
        if any(worker.loaded for worker in engines.workers):
            raise OutOfMemory("a context of 1024 tokens needs 9.00 GB, 1.00 GB of memory are free")
        return LoadedPair(options)

    monkeypatch.setattr("localdflash.server.worker.LoadedPair", load)
    answer, wanted = answer_of(monkeypatch), EngineSpec(EMBEDDED | {"pair": tiny}, given={"pair"}, role="chat")
    with ThreadPoolExecutor(1) as threads:
        connecting = threads.submit(ensure_daemon, wanted, said.append)
        until(lambda: len(said) == 2, 10)
        assert not connecting.done()
        answer.close()
        assert [one["pair"] for one in connecting.result(30).get("/ps")["pairs"]] == [tiny]
    assert said == [
        f"loading {tiny} ...",
        f"embedded is answering in another chat; waiting to load {tiny} ...",
    ]


def test_a_busy_one_of_another_version_is_left_alone(
    run: Any, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    ensure_daemon(EngineSpec(EMBEDDED), said.append)
    answer = answer_of(monkeypatch)
    monkeypatch.setattr(spawn, "__version__", "9.9")
    with pytest.raises(LocaldflashError, match=r"is busy and has version .* \(expected 9\.9\); try again"):
        ensure_daemon(EngineSpec(EMBEDDED), said.append)
    assert next(answer)
    answer.close()


def test_a_pair_that_was_pulled_or_set_since_takes_the_place_of_the_fallback(
    run: Any, said: list[str], tiny: str
) -> None:
    run()
    spec = EngineSpec({"threads": 1}, role="chat", default_pair=lambda: tiny)
    pairs = ensure_daemon(spec, said.append).get("/ps")["pairs"]
    assert [(one["options"]["pair"], one["roles"]) for one in pairs] == [(tiny, ["chat"]), ("embedded", ["completion"])]
    asked = EngineSpec({"pair": "embedded", "threads": 1}, ("pair",), role="completion", default_pair=lambda: tiny)
    assert len(ensure_daemon(asked, said.append).get("/ps")["pairs"]) == 2
