"""Test one daemon with many unreliable clients: `python -P lab/scripts/soak.py --requests 10000 --json FILE`.

Client processes send requests, disconnect mid-answer and are killed with SIGKILL. Complete answers must equal those
that this process generates for the same requests without a daemon; partial answers must be their beginnings. The
daemon has its own folder.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from localdflash.base.errors import EngineDisconnect, LocaldflashError
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab import result_file
from localdflash.lab.bench.prompt_set import load
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.api.chat_request import render_chat
from localdflash.server.api.completion_request import prepare_middle
from localdflash.server.client import Client, find_daemon
from localdflash.server.engine_spec import EngineSpec
from localdflash.server.spawn import ensure_daemon, stop
from localdflash.text.chat_template import TemplateMessage

PROCESSES, THREADS = 8, 4  # clients
KILL_EVERY = 1.0  # seconds
HANG_UP, SHARED_DOCUMENT = 0.25, 0.15  # shares of the requests
PREFIX, TOKENS = 240, (1, 24)  # characters of a prompt; tokens of an answer


def requests() -> list[dict[str, Any]]:
    """Return the requests: completions and chats, greedy and with a seed."""
    chosen = random.Random(7)
    bodies = []
    for number, prompt in enumerate(load(16)):
        body: dict[str, Any] = {"max_tokens": chosen.randint(*TOKENS), "temperature": number % 2, "seed": number}
        if prompt.question:
            body["messages"] = [{"role": "user", "content": prompt.question[:PREFIX]}]
        else:
            body |= {"prompt": prompt.prefix[-PREFIX:], "suffix": prompt.suffix[:60]}
        bodies.append(body)
    return bodies


def offline(bodies: list[dict[str, Any]], threads: int) -> list[str]:
    """Return the answers to these requests, generated in this process."""
    answers = []
    with LoadedPair(Options(threads=threads)) as loaded:
        for body in bodies:
            params = SamplingParams(body["temperature"], seed=body["seed"])
            if "messages" in body:
                messages = [TemplateMessage("user", body["messages"][0]["content"])]
                prepared = render_chat(loaded, messages).prepare(body["max_tokens"], params)
            else:
                prepared = prepare_middle(loaded, body["prompt"], body["suffix"], body["max_tokens"], params)
            answers.append(answer_directly(loaded, prepared).text)
    return answers


def worker(tasks: Path, seed: int) -> None:
    """Run a client process, which prints one line for each request, until it is killed."""
    bodies, answers = json.loads(tasks.read_text())
    for number in range(THREADS):
        threading.Thread(target=_ask_forever, args=(bodies, answers, seed * THREADS + number)).start()


def _ask_forever(bodies: list[dict[str, Any]], answers: list[str], seed: int) -> None:
    chosen = random.Random(seed)
    client = find_daemon()
    while client:
        which = chosen.randrange(len(bodies))
        os.write(1, f"{_ask(client, bodies[which], answers[which], chosen)}\n".encode())  # whole lines, always


def _ask(client: Client, body: dict[str, Any], expected: str, chosen: random.Random) -> str:
    """Send a request; return its outcome."""
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    document = {"document": "shared.py"} if chosen.random() < SHARED_DOCUMENT else {}
    patience = chosen.randint(0, 5) if chosen.random() < HANG_UP else -1
    text, finish = "", ""
    try:
        events = client.stream(path, {**body, **document, "stream": True})
        for count, event in enumerate(events):
            if count == patience:
                events.close()
                return "hung up" if expected.startswith(text) else "wrong"
            choice = event["choices"][0]
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            finish = choice["finish_reason"] or finish
    except EngineDisconnect:
        return "engine gone"
    except LocaldflashError as error:
        return f"refused: {type(error).__name__}"
    if finish == "cancelled":
        return "replaced" if expected.startswith(text) and document else "wrong"
    return "right" if text == expected else "wrong"


class Clients:
    """Client processes with their reported outcomes."""

    def __init__(self, tasks: Path) -> None:
        self.outcomes: Counter[str] = Counter()
        self.killed = 0
        self._tasks, self._seed = tasks, 0
        self._processes = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> "subprocess.Popen[str]":
        self._seed += 1
        command = [sys.executable, "-P", __file__, "--worker", str(self._seed), "--tasks", str(self._tasks)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout
        for line in process.stdout:
            if line.endswith("\n"):  # not cut by a kill
                self.outcomes[line.strip()] += 1

    def kill_one(self, chosen: random.Random) -> None:
        """Kill one client process with SIGKILL, and start a new one."""
        index = chosen.randrange(PROCESSES)
        self._processes[index].kill()
        self._processes[index].wait()
        self._processes[index] = self._start()
        self.killed += 1

    def end(self) -> None:
        """Kill all client processes with SIGKILL."""
        for process in self._processes:
            process.kill()
            process.wait()


def soak(count: int, threads: int) -> dict[str, Any]:
    """Send `count` requests; return the result as JSON values."""
    bodies = requests()
    answers = offline(bodies, threads)
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as folder:
        os.environ["LOCALDFLASH_HOME"] = folder
        tasks = Path(folder) / "tasks.json"
        tasks.write_text(json.dumps([bodies, answers]))
        client = ensure_daemon(
            EngineSpec({"pair": "embedded", "threads": threads}), lambda line: print(line, file=sys.stderr)
        )
        process = psutil.Process(client.get("/ps")["pid"])
        began, clients = time.perf_counter(), Clients(tasks)
        resident = list(_watch(clients, count, process))
        clients.end()
        took = time.perf_counter() - began
        alive = [_ask(client, *pair, random.Random(0)) for pair in zip(bodies[:20], answers[:20], strict=True)]
        status = client.get("/ps")
        stop(client)
    quarter = len(resident) // 4
    early, late = median(resident[quarter : 2 * quarter]), median(resident[-quarter:])
    return {
        "clients": PROCESSES * THREADS,
        "seconds": round(took, 1),
        "outcomes": dict(clients.outcomes),
        "requests": clients.outcomes.total(),
        "requests_seen_by_engine": status["requests"],
        "clients_killed": clients.killed,
        "resident_mb": {"second_quarter": round(early / 1e6, 1), "last_quarter": round(late / 1e6, 1)},
        "growth": round(late / early - 1, 4),
        "alive_afterwards": f"{alive.count('right')}/{len(alive) - alive.count('hung up')}",
    }


def _watch(clients: Clients, count: int, process: psutil.Process) -> Iterator[int]:
    """Yield the daemon's resident bytes every second until `count` requests were answered; kill a client each time."""
    chosen = random.Random(1)
    while clients.outcomes.total() < count:
        time.sleep(KILL_EVERY)
        clients.kill_one(chosen)
        yield process.memory_info().rss
        progress = f"{clients.outcomes.total()} of {count}: {dict(clients.outcomes)}"
        print(f"\r{progress}", end="", file=sys.stderr, flush=True)


def main() -> int:
    """Run the test, or with --worker one of its client processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--tasks", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.tasks, args.worker)
        return 0
    result = soak(args.requests, args.threads)
    print(json.dumps(result, indent=2))
    result_file.write(args.json, result)
    return 0 if not result["outcomes"].get("wrong") else 1


if __name__ == "__main__":
    sys.exit(main())
