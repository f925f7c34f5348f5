"""Run coding agents unmodified against the server, then time their recorded requests on SmolLM2-135M.

`PYTHONPATH=. python -P lab/scripts/agents.py --record FOLDER` installs the clients from npm and PyPI, and records two
turns and an overflow of each. The server has SmolLM2's tokenizer and template and a scripted answer; the settings are
those of `localdflash connect`. Recordings hold the clients' own prompts: keep the folder outside the tree.
`--replay FOLDER --json bench/results/agents.json` sends the recorded requests to the real model. `--only NAME` chooses
clients, by the names of `localdflash connect`.
"""

import argparse
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from localdflash.base.files import paths
from localdflash.cli.connect_command import NAME, PROGRAMS, Agent, make_agent
from localdflash.lab import result_file
from localdflash.lab.scripts.support import bench_daemon
from localdflash.server.guard import Guard
from localdflash.server.tcp import load_or_create_key
from tests.support.scripted_pair import AnsweringTarget, answering_client
from tests.support.served import serving
from tests.support.smollm2 import FILE

CONTEXT = 32768  # of both servers; SmolLM2 was trained with 8192, which `write_long_context` raises
DRAFTER = Path(__file__).parents[2] / "localdflash" / "models" / "smollm2" / "drafter.gguf"
ANSWERS = ("Apples.", "Bananas.", "Cherries.", "Grapes.", "Lemons.")  # the scripted answer; the others replace it
TIMEOUT_SECONDS = 240  # of a turn
TURNS = 5  # the last does not fit
FILL = 0.35  # share of the free context that each of the last three questions takes
OVERFLOW = re.compile(r"prompt is too long|context (?:window|length)|context_length|too large", re.IGNORECASE)
LIMITS = {  # of an answer's tokens, by path
    "/v1/messages": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/chat/completions": "max_completion_tokens",
}


@dataclass(frozen=True)
class AgentClient:
    """Client, its package with a version, and its arguments before the question, in the first turn and in later ones.

    `program`: the command, if `connect` has none, in which {url}, {key} and {settings}, a path, are replaced.
    """

    name: str
    package: str
    first: str
    later: str
    program: str = ""

    def install(self, folder: Path) -> Path:
        """Install the package unless it is installed; return the folder of its commands."""
        folder = folder / re.sub(r"\W+", "-", self.package).strip("-")
        is_python = "==" in self.package
        commands = folder / ("bin" if is_python else "node_modules/.bin")
        if not commands.exists() and is_python:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([commands / "pip", "install", "-q", self.package], check=True)
        elif not commands.exists():
            subprocess.run(["npm", "install", "--silent", "--prefix", folder, self.package], check=True)
        return commands

    def run_turn(self, agent: Agent | None, url: str, key: str, question: str, *, is_first: bool) -> str:
        """Run one turn in a project's folder, with the settings of `agent`; return the output and the exit code."""
        environment = {name: os.environ[name] for name in ("HOME", "PATH")}
        program, settings, after = self.program, "", list[str]()
        if agent:
            agent.settings.write()
            settings, program = str(agent.settings.path), program or shlex.join(agent.command)
            after = [agent.key_option, key] if agent.key_option else []
            environment |= {agent.key_variable: key} if agent.key_variable else {}
        command = shlex.split(f"{program} {self.first if is_first else self.later}")
        command = [part.format(url=url, key=key, settings=settings) if self.program else part for part in command]
        (folder := Path.home() / "project").mkdir(exist_ok=True)
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:  # a child may keep a pipe open
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            process = subprocess.Popen([*command, question, *after], cwd=folder, env=environment, **streams)
            with suppress(subprocess.TimeoutExpired):
                process.wait(TIMEOUT_SECONDS)
            process.kill()
            output.seek(0)
            return f"{output.read()}\nexit code {process.wait()}"


MODEL, CODEX, AIDER = f"-m {NAME}/{NAME}", "--skip-git-repo-check", "--no-git --yes-always"
QWEN = f"env OPENAI_BASE_URL={{url}}/v1 OPENAI_API_KEY={{key}} OPENAI_MODEL={NAME} qwen"
CLIENTS = {
    "claude": AgentClient("Claude Code", "@anthropic-ai/claude-code@2.1.328", "-p", "-c -p"),
    "codex": AgentClient("Codex", "@openai/codex@0.169.0", f"exec {CODEX}", f"exec resume --last {CODEX}"),
    "opencode": AgentClient("opencode", "opencode-ai@1.18.33", f"run {MODEL}", f"run -c {MODEL}"),
    "pi": AgentClient("pi", "@mariozechner/pi-coding-agent@0.73.1", "-p", "-c -p"),
    "aider": AgentClient("aider", "aider-chat==0.86.2", f"{AIDER} -m", f"{AIDER} --restore-chat-history -m"),
    "llm": AgentClient("llm", "llm==0.36", "", "-c"),
    "continue": AgentClient("Continue", "@continuedev/cli@1.5.47", "-p", "--resume -p", "cn --config {settings}"),
    "qwen-code": AgentClient("Qwen Code", "@qwen-code/qwen-code@0.24.4", "-p", "-c -p", QWEN),
}


class Recorder:
    """ASGI middleware that records each request of an answer, and whether its prompt was refused as too long."""

    def __init__(self, app: ASGIApp) -> None:
        self.turn, self.requests = 0, list[dict[str, Any]]()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        request, response = b"", b""

        async def received() -> Message:
            nonlocal request
            message = await receive()
            request += message.get("body", b"")
            return message

        async def sent(message: Message) -> None:
            nonlocal response
            response += message.get("body", b"")
            await send(message)

        turn = self.turn
        await self._app(scope, received, sent)
        if scope["path"] in LIMITS:
            about = {"turn": turn, "path": scope["path"], "refused": b"prompt is too long" in response}
            self.requests.append(about | {"body": json.loads(request)})


def record(name: str, clients: Path) -> dict[str, Any]:
    """Run `TURNS` turns of a client; return its requests and outputs. SystemExit if it shows no answer."""
    client, sizes, outputs, topic = CLIENTS[name], list[int](), list[str](), "figs"
    commands = client.install(clients)

    def answer(prompt: str) -> tuple[str, str]:
        sizes.append(len(loaded.tokenizer.encode(prompt)))
        return ANSWERS[0], "<|im_end|>"

    with (
        patch.object(AnsweringTarget, "context", CONTEXT),
        answering_client(FILE, answer) as (server, loaded),
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as home,
        patch.dict(os.environ, HOME=home, LOCALDFLASH_HOME=home, PATH=f"{commands}{os.pathsep}{os.environ['PATH']}"),
    ):
        url, key = f"http://127.0.0.1:{listener.getsockname()[1]}", load_or_create_key(paths.key_file())
        agent = make_agent(name, url, paths.key_file(), key, CONTEXT) if name in PROGRAMS else None
        recorder = Recorder(Guard(server.app, key=key))
        with serving(recorder, listener):
            for turn in range(1, TURNS + 1):
                recorder.turn = turn
                if turn == TURNS - 2:
                    topic = int(FILL * (CONTEXT - max(sizes))) * "fig "  # one token each
                question = f"Question {turn}: say one word about {topic}. Use no tool."
                outputs.append(client.run_turn(agent, url, key, question, is_first=turn == 1))
                if turn < TURNS and ANSWERS[0] not in outputs[-1]:
                    raise SystemExit(f"{name}: turn {turn} failed:\n{outputs[-1][-2000:]}")
    return {"version": re.split("==|@", client.package)[-1], "requests": recorder.requests, "outputs": outputs}


def main_request(recording: dict[str, Any], turn: int) -> dict[str, Any]:
    """Return the request that carries a turn's question: the longest one, because titles are asked for in others."""
    asked = [one for one in recording["requests"] if one["turn"] == turn and f"Question {turn}:" in json.dumps(one)]
    return max(asked, key=lambda one: len(json.dumps(one["body"])))


def overflow_of(recording: dict[str, Any]) -> str:
    """Return what a client does if its conversation does not fit."""
    last = [one for one in recording["requests"] if one["turn"] == TURNS]
    output = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", recording["outputs"][-1])
    refused = [number for number, one in enumerate(last) if one["refused"]]
    answered = last[refused[-1] + 1 :] if refused else []
    if any(f"Question {TURNS}:" in json.dumps(one["body"]) for one in answered):
        return "compacts and repeats the question"
    if answered and ANSWERS[0] in output:
        return "compacts"
    if not refused:
        return "compacts before the prompt is too long"
    lines = [line.strip() for line in output.splitlines() if OVERFLOW.search(line)]
    if any(" maximum; this model's maximum context length is " in line for line in lines):
        return "shows the server's message"
    return f"shows “{lines[0].partition('. ')[0]}”" if lines else "shows no reason"


def write_long_context(path: Path) -> str:
    """Copy SmolLM2 with a trained context of `CONTEXT` tokens: texts get worse, a token costs the same."""
    data, key = bytearray(FILE.read_bytes()), b"llama.context_length"
    struct.pack_into("<I", data, data.index(key) + len(key) + 4, CONTEXT)  # the value follows its type
    path.write_bytes(data)
    return str(path)


def replay(recording: dict[str, Any]) -> dict[str, Any]:
    """Send a client's first two turns to the running daemon, the second turn's own request five times."""
    first, second = main_request(recording, 1), main_request(recording, 2)
    assert ANSWERS[0] in json.dumps(second["body"]), "the second turn does not repeat the first answer"
    sent = {id(one): _send(one, ANSWERS[0]) for one in recording["requests"] if one["turn"] < 3 and one is not second}
    # The first answer differs each time, so that only the first turn's prompt is cached.
    runs = [_send(second, answer) for answer in ANSWERS]
    times = [round(ms, 1) for *_, ms in runs]
    return {
        "first_turn_tokens": sent[id(first)][0],
        "second_turn_tokens": runs[0][0],
        "second_cached_share": round(runs[0][1] / runs[0][0], 4),
        "second_ttft_ms": {"p50": median(times), "all": times},
        "load": round(os.getloadavg()[0], 1),
    }


def _send(request: dict[str, Any], answer: str) -> tuple[int, int, float]:
    """Request one token; return the tokens of the prompt, how many were cached, and the milliseconds of the answer."""
    body = json.loads(json.dumps(request["body"]).replace(ANSWERS[0], answer))
    body.pop("stream_options", None)
    with bench_daemon.client() as client:
        began = time.perf_counter()
        usage = client.post(request["path"], body | {"stream": False, LIMITS[request["path"]]: 1})["usage"]
        ms = 1e3 * (time.perf_counter() - began)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    if details:
        return usage.get("prompt_tokens") or usage["input_tokens"], details["cached_tokens"], ms
    cached = usage["cache_read_input_tokens"]  # Anthropic's `input_tokens` are those that were not cached
    return usage["input_tokens"] + cached, cached, ms


def main() -> int:
    """Record or replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="for clients and recordings, outside the tree")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="with recordings")
    parser.add_argument("--json", type=Path, help="result of --replay")
    parser.add_argument("--only", choices=CLIENTS, action="append", default=[])
    given = parser.parse_args()
    names = given.only or list(CLIENTS)
    for name in names if given.record else ():
        recording = record(name, given.record.resolve() / "clients")
        (given.record / f"{name}.json").write_text(json.dumps(recording), "utf-8")
        print(name, "recorded", flush=True)
    if given.replay:
        result: dict[str, Any] = {}
        serve = [sys.executable, "-c", bench_daemon.PROGRAM, "serve", "--backend", "cpu", "--kv", "int8"]
        model = write_long_context(given.replay / "model.gguf")
        with bench_daemon.running(*serve, "--pair", model, "--drafter", str(DRAFTER)):
            for name in names:
                recording = json.loads((given.replay / f"{name}.json").read_text("utf-8"))
                about = {"version": recording["version"], "overflow": overflow_of(recording)}
                result[CLIENTS[name].name] = about | replay(recording)
                print(name, json.dumps(result[CLIENTS[name].name]), flush=True)
        result_file.write(given.json, {"context": CONTEXT, "clients": result})
    return 0


if __name__ == "__main__":
    sys.exit(main())
