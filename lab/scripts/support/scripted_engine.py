"""Daemon with scripted answers, to measure and test the chat from outside.

In a test: `with scripted(Answer.of("Hello")) as engine`. As a process: `COMMAND`, whose script comes from POST /script
or the environment variable SCRIPT. Requests are in `asked`, or at GET /script. The last answer repeats.
"""

import argparse
import asyncio
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from localdflash import __version__
from localdflash.base.files import paths
from localdflash.lab.scripts.support.instant_engine import chunk, respond, serving
from localdflash.lab.scripts.support.scripted_answers import Answer, error, timings, tokens, usage

COMMAND = (sys.executable, "-P", __file__)
OPTIONS = {
    "pair": "scripted",
    "backend": "llama.cpp",
    "threads": 0,
    "context": 0,
    "draft": True,
    "drafter": "",
    "drafter_bits": 8,
    "native_fp4": False,
    "kv": "auto",
}
ABOUT = {
    "pair": "scripted",
    "backend": "llama.cpp",
    "context": 32768,
    "device": "cpu",
    "drafter": True,
    "memory": {"target weights": 6701056, "drafter weights": 5121536, "program": 75858186},
    "predicted": {"target weights": 6701056, "drafter weights": 5121536, "program": 76546048},
    "notice": "",
}
HEAD = {"id": "chatcmpl-1", "created": 1, "object": "chat.completion.chunk", "usage": None}
Json = dict[str, Any]


@dataclass
class ScriptedEngine:
    """Script and record of a scripted daemon. `about` overrides /ps; loading takes `loading` seconds."""

    answers: list[Answer] = field(default_factory=list)
    about: Json = field(default_factory=dict)
    loading: float = 0.0
    asked: list[Json] = field(default_factory=list)  # bodies of the chats
    live: int = 0  # answers in progress
    left: int = 0  # answers whose client disconnected
    began: float = field(default_factory=time.monotonic)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other; an answer ends when its client leaves."""
        answering: asyncio.Task[None] | None = None
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = head.lower().partition("content-length: ")[2].partition("\r")[0]
                body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
                target = head.split()[1].partition("?")[0]
                if target == "/v1/chat/completions":
                    answering = asyncio.create_task(self._chat(body, writer))
                else:
                    respond(writer, *self._response(head.split()[0], target, body))
        if answering:
            answering.cancel()
        writer.close()

    def _response(self, method: str, target: str, body: Json) -> tuple[Any, int]:
        """Return the response and status of a path other than the chat's."""
        if target == "/load":
            self.about = {"pair": body.get("pair", ABOUT["pair"]), **self.about}  # a script's own name stays
        if (method, target) == ("POST", "/script"):
            self.take(body)
        if target == "/health" and not self._ready:
            return {"status": "loading model"}, 503
        about = self._about
        known: dict[str, Callable[[], Json]] = {
            "/health": lambda: {"status": "ok"},
            "/ps": self._ps,
            "/props": lambda: {
                "default_generation_settings": {"n_ctx": about["context"]},
                "model_alias": about["pair"],
            },
            "/v1/models": lambda: {"object": "list", "data": [{"id": about["pair"], "object": "model", "created": 1}]},
            "/apply-template": lambda: (
                {"tokens": len(tokens(_prompt(body)))} if body.get("count") else {"prompt": _prompt(body)}
            ),
            "/tokenize": lambda: {"tokens": [len(token) for token in tokens(body["content"])]},
            "/load": lambda: about,
            "/script": lambda: {"asked": self.asked, "live": self.live, "left": self.left},
        }
        if target not in known:
            return error(Answer(status=404, message="no such path")), 404
        return known[target](), 200

    @property
    def _ready(self) -> bool:
        return time.monotonic() - self.began >= self.loading

    @property
    def _about(self) -> Json:
        return {**ABOUT, **self.about}

    def _ps(self) -> Json:
        about = self._about if self._ready else {"pair": self._about["pair"]}
        pair = {**about, "roles": ["chat", "completion"], "options": OPTIONS | {"pair": about["pair"]}}
        return {
            **pair,
            "pairs": [pair],
            "since": 1.0 if self._ready else None,
            "requests": len(self.asked),
            "running": self.live,
            "waiting": 0,
            "idle_seconds": 0.0,
            "uptime_seconds": round(time.monotonic() - self.began, 3),
            "version": __version__,
            "pid": os.getpid(),
        }

    def take(self, body: Json) -> None:
        """Replace the script by the fields of `body`, in the format of `script`."""
        self.answers = [Answer.read(fields) for fields in body.get("answers", ())] or self.answers
        self.about = body.get("about", self.about)
        if "loading" in body:
            self.loading, self.began = body["loading"], time.monotonic()

    async def _chat(self, body: Json, writer: asyncio.StreamWriter) -> None:
        if body.get("max_tokens") == 0:  # reading ahead
            respond(writer, {}, 200)
            return
        self.asked.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else (self.answers or [Answer.of("Nothing.")])[0]
        prompt, context = len(tokens(_prompt(body))), self._about["context"]
        if prompt >= context:
            message = f"prompt is too long: {prompt} tokens > {context} maximum"
            answer = Answer(status=400, message=message, code="context_length_exceeded")
        if answer.status != 200:
            respond(writer, error(answer), answer.status)
            return
        self.live += 1
        try:
            await self._stream(answer, prompt, body, writer)
        except (OSError, asyncio.CancelledError):
            self.left += 1
        finally:
            self.live -= 1

    async def _stream(self, answer: Answer, prompt: int, body: Json, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        if body.get("draft") is False:
            answer = replace(answer, steps=[replace(step, drafter="none") for step in answer.steps])
        due = time.monotonic()
        for number, step in enumerate(answer.steps):
            due += step.wait
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            if not number:
                self._event(writer, _choice({"role": "assistant", "content": ""}))
            event = _choice({"content": step.text})
            self._event(writer, {**event, "step": step.as_event()} if body.get("steps") else event)
            await writer.drain()
        await self._end(answer, prompt, writer)

    async def _end(self, answer: Answer, prompt: int, writer: asyncio.StreamWriter) -> None:
        match answer.end:
            case "cut":
                writer.close()
                return
            case "hang":
                await asyncio.Event().wait()
            case "error":
                chunk(writer, f"data: {json.dumps(error(answer))}\n\n")
            case "garbage":
                chunk(writer, "data: {not json\n\n\N{REPLACEMENT CHARACTER}\0 no event at all\n\n")
            case finish:
                self._event(writer, {**_choice({}, finish), "timings": timings(answer, prompt)})
                self._event(writer, {"choices": [], "usage": usage(answer, prompt)})
        chunk(writer, "data: [DONE]\n\n")
        chunk(writer, "")

    def _event(self, writer: asyncio.StreamWriter, value: Json) -> None:
        chunk(writer, f"data: {json.dumps({**HEAD, 'model': self._about['pair'], **value})}\n\n")

    async def serve(self, started: Callable[[asyncio.AbstractEventLoop, asyncio.Event], None] | None = None) -> None:
        """Serve until cancelled, or until the event passed to `started` is set."""
        stop = asyncio.Event()
        async with serving(self.connected, paths.daemon_socket()):
            if started:
                started(asyncio.get_running_loop(), stop)
            await stop.wait()


def _prompt(body: Json) -> str:
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in body.get("messages", ()))
    continues = body.get("continue_final_message")
    return turns.removesuffix("<|im_end|>\n") if continues else turns + "<|im_start|>assistant\n"


def _choice(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {"choices": [choice]}


@contextmanager
def scripted(*answers: Answer, **about: Any) -> Iterator[ScriptedEngine]:
    """Run a scripted engine in a thread; `about` overrides fields of /ps."""
    engine, started = ScriptedEngine(list(answers), about), queue.SimpleQueue[Any]()
    serving = engine.serve(lambda loop, stop: started.put((loop, stop)))
    thread = threading.Thread(target=asyncio.run, args=[serving], name="scripted engine")
    thread.start()
    loop, stop = started.get(timeout=10)
    try:
        yield engine
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


def script(*answers: Answer, **rest: Any) -> str:
    """Return the JSON for SCRIPT and POST /script."""
    return json.dumps({"answers": [asdict(answer) for answer in answers], **rest})


def main() -> None:
    """Run the script as its docstring says."""
    engine = ScriptedEngine()
    engine.take(json.loads(os.environ.get("SCRIPT", "{}")))
    asyncio.run(engine.serve())


if __name__ == "__main__":
    argparse.ArgumentParser(description="Run a daemon with scripted answers; SCRIPT holds the script.").parse_args()
    main()
