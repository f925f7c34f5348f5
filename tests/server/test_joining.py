"""`serve --port` beside an engine that runs: the port is that engine's, for as long as the command runs."""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import httpx2
import pytest

from localdflash.base.files import paths
from tests.support.daemons import (
    DROPPED_SOCKET,
    LONG,
    PROGRAM,
    SLOW,
    begin,
    client,
    is_ready,
    killed,
    said,
    start,
    until,
)

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets"),
    pytest.mark.usefixtures("short_home"),
    pytest.mark.filterwarnings(DROPPED_SOCKET),
]
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


def join(*arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """The command beside a running engine, and the address that it tells."""
    process = begin("--port", "0", *arguments)
    assert process.stderr
    line = process.stderr.readline()
    return process, line.split("listening on ")[1].split(": curl")[0]


def answers(base: str, path: str = "/v1/models", **headers: str) -> int:
    """The status of an answer there; 0 where nobody listens."""
    with suppress(httpx2.ConnectError), httpx2.Client(trust_env=False) as http:
        return http.get(base + path, headers=headers).status_code
    return 0


def test_a_port_of_a_running_engine_has_its_rules() -> None:
    start()
    _, base = join()
    key = paths.key_file().read_text().strip()
    assert answers(base) == 401
    assert answers(base, "/health") == 200
    assert answers(base, Authorization=f"Bearer {key}") == 200
    assert answers(base, **{"x-api-key": key}) == 200
    assert answers(base, Authorization=f"Bearer {key}", Host="evil.example") == 421
    assert answers(base, Authorization=f"Bearer {key}", Origin="http://evil.example") == 403
    with httpx2.Client(trust_env=False, headers={"x-api-key": key}) as http:
        assert http.post(f"{base}/listen", json={"host": "127.0.0.1", "port": 0, "hosts": ["x"]}).status_code == 403
        assert http.post(f"{base}/v1/chat/completions", json={**CHAT, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_port_closes_with_the_command_and_the_engine_goes_on(how: signal.Signals) -> None:
    engine = start("--idle", "0.03", program=SLOW + PROGRAM)
    with client() as talking:
        answer = talking.stream("/v1/chat/completions", {**CHAT, **LONG})
        next(answer)  # until the port is open the answer keeps the engine
        process, base = join()
        answer.close()
    time.sleep(2.5)  # an engine whose port is held is not idle
    assert answers(base, "/health") == 200
    process.send_signal(how)
    until(lambda: not answers(base, "/health"))
    if how == signal.SIGINT:
        assert process.wait(10) == 0
    assert is_ready()
    assert said(engine)[0] == 0  # idle by now


def test_the_command_ends_with_the_engine() -> None:
    engine = start()
    process, base = join()
    engine.terminate()
    assert process.wait(10) == 0
    assert process.stderr
    assert process.stderr.read().endswith("The engine has stopped, and with it this port.\n")
    assert not answers(base, "/health")
    assert engine.wait(10) == 0
    engine = start()
    process, base = join()
    killed(engine)
    assert process.wait(10) == 1
    assert process.stderr
    assert "went away" in process.stderr.read()


def test_two_ports_beside_each_other() -> None:
    start("--port", "0")
    (one, first), (_, second) = join(), join()
    assert first != second
    one.send_signal(signal.SIGINT)
    until(lambda: not answers(first, "/health"))
    assert answers(second, "/health") == 200


def test_a_port_that_is_taken_is_one_line() -> None:
    start()
    _, base = join()
    port = base.rsplit(":", 1)[1]
    code, lines = said(begin("--port", port))
    assert (code, lines) == (2, [f"localdflash: port {port} on 127.0.0.1 is in use: choose another one with --port"])


def test_options_for_an_engine_that_runs_already_are_refused() -> None:
    start()
    code, lines = said(begin("--port", "0", "--context", "512"))
    assert code == 1
    assert "an engine is running already" in lines[0]


def test_a_port_of_the_settings_is_no_reason_to_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is started while another one starts ends at once."""
    start()
    monkeypatch.setenv("LOCALDFLASH_SERVER_PORT", "0")
    code, lines = said(begin())
    assert (code, len(lines)) == (1, 1)
    assert "an engine is running already" in lines[0]


def test_an_answer_through_a_port_that_closes_is_cancelled_in_time() -> None:
    start(program=SLOW + PROGRAM)
    process, base = join()
    key = paths.key_file().read_text().strip()
    with (
        client() as looking,
        httpx2.Client(trust_env=False, headers={"x-api-key": key}) as http,
        http.stream("POST", f"{base}/v1/chat/completions", json={**CHAT, **LONG}) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        until(lambda: looking.get("/ps")["running"] == 0, 8)
