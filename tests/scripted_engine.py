"""A daemon whose answers are written down beforehand, to measure and test the chat from outside.

In a test: `with scripted(Answer.of("Hello")) as engine`. As a process: `python -P tests/scripted_engine.py`, with the
root of the source tree on PYTHONPATH; it then takes its script from POST /script, or in SCRIPT of the environment. It
listens where the daemon would, under the LOCALDFLASH_HOME it is given, and answers in the daemon's shapes. What was
asked is in `asked`, or at GET /script. The script's last answer is given again when there are no more.
"""

import asyncio
import json
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from localdflash import paths
from localdflash.server.sockets import prepare_folder
from localdflash.server.spawn import own_version
from tests.instant_engine import chunk, respond

OPTIONS = {
    "pair": "scripted",
    "backend": "llama.cpp",
    "threads": 0,
    "context": 0,
    "draft": True,
    "drafter_bits": 8,
    "native_fp4": False,
    "kv": "f16",
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
HEAD = {"id": "chatcmpl-1", "created": 1, "model": "scripted", "object": "chat.completion.chunk", "usage": None}
SLOTS = 8
Json = dict[str, Any]


@dataclass(frozen=True)
class Step:
    """One event of an answer, `wait` seconds after the one before. All its tokens but the last were drafted."""

    text: str
    wait: float = 0.0
    drafter: str = "dflash"

    def told(self) -> Json:
        """As the daemon tells it."""
        spelled = tokens(self.text)
        accepted = 0 if self.drafter == "none" else max(len(spelled) - 1, 0)
        return {
            "drafter": self.drafter,
            "drafted": 0 if self.drafter == "none" else max(accepted, SLOTS - 1),
            "accepted": accepted,
            "tokens": spelled,
            "sizes": [len(token.encode()) for token in spelled],
            "ms": round(max(self.wait * 1e3, 0.1), 3),
        }


@dataclass(frozen=True)
class Answer:
    """One answer: its steps, then its end. `status` other than 200 refuses the request, with `message` and `code`.

    The ends beside the proper ones: the connection is closed ("cut"), an error is told ("error", with `message`),
    nothing comes any more ("hang"), something comes that is no event ("garbage").
    """

    steps: Sequence[Step] = ()
    end: Literal["stop", "length", "cut", "error", "hang", "garbage"] = "stop"
    status: int = 200
    message: str = ""
    code: str | None = None

    @classmethod
    def of(cls, text: str, *, rate: float = 0.0, size: int = 4, first: float = 0.0, **rest: Any) -> Self:
        """A text in steps of `size` tokens, `rate` tokens a second (0: as fast as they are read)."""
        spelled = tokens(text)
        groups = ["".join(spelled[at : at + size]) for at in range(0, len(spelled), size)]
        pause = size / rate if rate else 0.0
        drafters = ("dflash", "lookup", "none")
        steps = [Step(part, pause + first * (not at), drafters[at % 3]) for at, part in enumerate(groups)]
        return cls(steps, **rest)

    @classmethod
    def pieces(cls, *texts: str, wait: float = 0.0, **rest: Any) -> Self:
        """A text in just these pieces, `wait` seconds apart."""
        return cls([Step(text, wait) for text in texts], **rest)

    @classmethod
    def read(cls, told: Json) -> Self:
        """What `asdict` made."""
        return cls(**{**told, "steps": [Step(**step) for step in told["steps"]]})


def tokens(text: str) -> list[str]:
    """Words with the blank before them, marks and blanks one by one; together they are the text."""
    return re.findall(r" ?\w+|\s|[^\w\s]", text)


@dataclass
class ScriptedEngine:
    """The script, and what has happened. `about` is what /ps says of the pair; it is loaded `loading` seconds long."""

    answers: list[Answer] = field(default_factory=list)
    about: Json = field(default_factory=dict)
    loading: float = 0.0
    asked: list[Json] = field(default_factory=list)  # bodies of the chats
    live: int = 0  # answers under way
    left: int = 0  # answers that the client did not wait for
    began: float = field(default_factory=time.monotonic)

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, one after the other; an answer ends when its client leaves."""
        answering: asyncio.Task[None] | None = None
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = head.lower().partition("content-length: ")[2].partition("\r")[0]
                body = json.loads(await reader.readexactly(int(length or 0)) or b"{}")
                target = head.split()[1]
                if target == "/v1/chat/completions":
                    answering = asyncio.create_task(self._chat(body, writer))
                else:
                    respond(writer, *self._told(head.split()[0], target, body))
        if answering and not answering.done():
            self.left += 1
            answering.cancel()
        writer.close()

    def _told(self, method: str, target: str, body: Json) -> tuple[Any, int]:
        """What a path other than the chat's says, and its status."""
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
            "/apply-template": lambda: {"prompt": _prompt(body)},
            "/tokenize": lambda: {"tokens": [len(token) for token in tokens(body["content"])]},
            "/load": lambda: about,
            "/script": lambda: {"asked": self.asked, "live": self.live, "left": self.left},
        }
        if target not in known:
            return _error(Answer(status=404, message="no such path")), 404
        return known[target](), 200

    @property
    def _ready(self) -> bool:
        return time.monotonic() - self.began >= self.loading

    @property
    def _about(self) -> Json:
        return {**ABOUT, **self.about}

    def _ps(self) -> Json:
        about = self._about if self._ready else {"pair": self._about["pair"]}
        return {
            **about,
            "options": OPTIONS | {"pair": about["pair"]},
            "since": 1.0 if self._ready else None,
            "requests": len(self.asked),
            "running": self.live,
            "waiting": 0,
            "idle_seconds": 0.0,
            "uptime_seconds": round(time.monotonic() - self.began, 3),
            "version": own_version(),
            "pid": os.getpid(),
        }

    def take(self, body: Json) -> None:
        """Another script, as `script` writes it; what it does not name stays."""
        self.answers = [Answer.read(told) for told in body.get("answers", ())] or self.answers
        self.about = body.get("about", self.about)
        if "loading" in body:
            self.loading, self.began = body["loading"], time.monotonic()

    async def _chat(self, body: Json, writer: asyncio.StreamWriter) -> None:
        self.asked.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else (self.answers or [Answer.of("Nothing.")])[0]
        prompt, room = len(tokens(_prompt(body))), self._about["context"]
        if prompt >= room:
            told = f"the prompt has {prompt} tokens: the context holds {room}; shorten it"
            answer = Answer(status=400, message=told, code="context_length_exceeded")
        if answer.status != 200:
            respond(writer, _error(answer), answer.status)
            return
        self.live += 1
        try:
            with suppress(OSError):
                await self._stream(answer, prompt, body, writer)
        finally:
            self.live -= 1

    async def _stream(self, answer: Answer, prompt: int, body: Json, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        due = time.monotonic()
        for number, step in enumerate(answer.steps):
            due += step.wait
            if (left := due - time.monotonic()) > 0:
                await asyncio.sleep(left)
            if not number:
                _event(writer, _choice({"role": "assistant", "content": ""}))
            event = _choice({"content": step.text})
            _event(writer, {**event, "step": step.told()} if body.get("steps") else event)
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
                _event(writer, _error(answer))
            case "garbage":
                chunk(writer, "data: {not json\n\n\N{REPLACEMENT CHARACTER}\0 no event at all\n\n")
            case finish:
                _event(writer, {**_choice({}, finish), "timings": _timings(answer, prompt)})
                _event(writer, {**HEAD, "choices": [], "usage": _usage(answer, prompt)})
        chunk(writer, "data: [DONE]\n\n")
        chunk(writer, "")

    async def serve(self, started: Callable[[asyncio.AbstractEventLoop, asyncio.Event], None] | None = None) -> None:
        """Answer until cancelled, or until the event is set that `started` is given."""
        path, stop = paths.engine_socket(), asyncio.Event()
        prepare_folder(path)
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self.connected, path, limit=1 << 26)
        if started:
            started(asyncio.get_running_loop(), stop)
        await stop.wait()
        server.close()


def _prompt(body: Json) -> str:
    turns = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in body.get("messages", ()))
    return turns + "<|im_start|>assistant\n"


def _choice(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "choices": [choice]}


def _error(answer: Answer) -> Json:
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    return {"error": {"message": answer.message, "type": kind, "param": None, "code": answer.code or answer.status}}


def _event(writer: asyncio.StreamWriter, value: Json) -> None:
    chunk(writer, f"data: {json.dumps(value)}\n\n")


def _totals(answer: Answer) -> tuple[int, int, int]:
    """Tokens, drafted ones, and those of them that were accepted."""
    told = [step.told() for step in answer.steps]
    return (
        sum(len(one["tokens"]) for one in told),
        sum(one["drafted"] for one in told),
        sum(one["accepted"] for one in told),
    )


def _timings(answer: Answer, prompt: int) -> Json:
    total, drafted, accepted = _totals(answer)
    ms, steps = max(sum(step.wait for step in answer.steps) * 1e3, 1.0), max(len(answer.steps), 1)
    drafters = [step.drafter for step in answer.steps]
    return {
        "queue_ms": 0.1,
        "cache_n": 0,
        "prompt_n": prompt,
        "prompt_ms": 2.0,
        "prompt_per_token_ms": round(2.0 / prompt, 3),
        "prompt_per_second": prompt * 500.0,
        "predicted_n": total,
        "predicted_ms": round(ms, 3),
        "predicted_per_token_ms": round(ms / max(total, 1), 3),
        "predicted_per_second": round(total * 1e3 / ms, 3),
        "draft_n": drafted,
        "draft_n_accepted": accepted,
        "steps": len(answer.steps),
        "tau": round(total / steps, 3),
        "accept_by_slot": [round(0.9 / (slot + 1), 4) for slot in range(SLOTS - 1)],
        "steps_by_drafter": {name: drafters.count(name) for name in sorted(set(drafters))},
    }


def _usage(answer: Answer, prompt: int) -> Json:
    total, drafted, accepted = _totals(answer)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": total,
        "total_tokens": prompt + total,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


@contextmanager
def scripted(*answers: Answer, **about: Any) -> Iterator[ScriptedEngine]:
    """Such an engine in a thread, listening. `about`: what /ps says differently."""
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
    """The JSON that SCRIPT and POST /script take."""
    return json.dumps({"answers": [asdict(answer) for answer in answers], **rest})


def main() -> None:
    """See above."""
    engine = ScriptedEngine()
    engine.take(json.loads(os.environ.get("SCRIPT", "{}")))
    asyncio.run(engine.serve())


if __name__ == "__main__":
    main()
