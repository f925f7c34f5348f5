"""A chat and a completion by a server: the same text as in this process, also where the engine goes away meanwhile.

The client keeps the history and asks with everything that decides the text, so that an answer can be asked for again:
it is the same one, and goes on where it stopped.
"""

import secrets
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import click

from localdflash.cli.interrupt import Interrupt
from localdflash.cli.options import given, wanted
from localdflash.config import Config, load_config
from localdflash.engine.sampling_params import SamplingParams
from localdflash.errors import DeviceFailed, EngineGone
from localdflash.server.client import Client
from localdflash.server.key import read_key
from localdflash.server.refusals import Json
from localdflash.server.spawn import connect
from localdflash.text.sanitize import printable

RESTARTS = 2  # that one answer may need
GONE = "The engine went away: started again."
WITH_USAGE = {"stream_options": {"include_usage": True}}


class RemoteServer:
    """Where answers come from: a client that `connect` makes, and makes again when the engine is gone.

    `fields` go into every request. `ours`: it is our own engine, which knows more than OpenAI's interface.
    """

    def __init__(self, connect: Callable[[], Client], fields: Mapping[str, object], *, ours: bool) -> None:
        self._connect, self.fields, self.ours = connect, fields, ours
        self.client = connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()

    def events(self, path: str, body: Mapping[str, object]) -> Generator[tuple[int, Json], None, None]:
        """The events of an answer, each with how often it was begun again."""
        for restarts in range(RESTARTS + 1):
            try:
                for event in self.client.stream(path, {**self.fields, **body}):
                    yield restarts, event
                return
            except (EngineGone, DeviceFailed) as error:
                if not self.ours or restarts == RESTARTS:
                    raise EngineGone(f"{error}: try again") from None
            gone, self.client = self.client, self._connect()
            gone.close()
            say(GONE)


def server(ctx: click.Context, options: dict[str, Any]) -> RemoteServer:
    """The server that the settings name, else our engine, with the pair options that a command was given."""
    config = load_config()
    if config.server.url:
        return _named_server(config, options["pair"] if "pair" in given(ctx, options) else None)
    engine = wanted(ctx, options)
    return RemoteServer(lambda: connect(engine, say), {}, ours=True)


def say(line: str) -> None:
    """A line for the user, on stderr."""
    print(printable(line), file=sys.stderr, flush=True)


def _named_server(config: Config, model: str | None) -> RemoteServer:
    """Another server; its first model where none was asked for."""
    key = read_key(config.server.key_file) if config.server.key_file else ""
    client = Client.of_url(config.server.url, key)
    if model is None:
        models = client.get("/v1/models").get("data") or [{}]
        model = str(models[0].get("id", "default"))
    return RemoteServer(lambda: client, {"model": model}, ours=False)


class RemoteAnswer:
    """Iterate for the text, up to an interrupt; `finish` and `numbers` tell afterwards how it went."""

    def __init__(self, server: RemoteServer, path: str, body: Mapping[str, object], interrupt: Interrupt) -> None:
        self._server, self._path = server, path
        self._body: dict[str, Any] = {**body, "stream": True}
        self._interrupt = interrupt
        self.text = ""
        self.finish = "cancelled"
        self.numbers: dict[str, Any] = {}
        self.explained: dict[str, Any] = {}  # the prompt, where it was asked for

    def __iter__(self) -> Iterator[str]:
        text, begun = "", 0
        for restarts, event in self._interrupt.each(self._server.events(self._path, self._body)):
            if restarts > begun:
                begun, text = restarts, ""
            text += self._read(event)
            if new := _unseen(self.text, text):
                self.text = text
                yield new

    def _read(self, event: Json) -> str:
        """The text of an event of a chat, of a completion or of /complete; what else it tells is kept."""
        self.explained = {name: event[name] for name in ("prompt", "budget") if name in event} or self.explained
        if timings := event.get("timings"):
            self.numbers = _numbers(timings)
        elif (usage := event.get("usage")) and not self.numbers:
            self.numbers = {"tokens": usage.get("completion_tokens", 0)}
        choice = next(iter(event.get("choices") or ()), event)
        self.finish = choice.get("finish_reason") or choice.get("finish") or self.finish
        return choice.get("text") or (choice.get("delta") or choice).get("content") or ""


class RemoteConversation:
    """Messages so far, and how to answer the next one; an answer joins them as far as it went."""

    def __init__(self, server: RemoteServer, fields: Mapping[str, object], system: str = "") -> None:
        self._server, self._fields, self._system = server, fields, system
        self.messages: list[dict[str, str]] = []
        self.clear()

    @property
    def pair(self) -> str:
        """The name of the pair; empty where another server knows it."""
        return str(self._server.client.get("/ps")["pair"]) if self._server.ours else ""

    def clear(self) -> None:
        """Start over."""
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def recall(self, system: str, messages: Sequence[tuple[str, str]]) -> None:
        """Go on from these instructions and messages."""
        self._system = system
        self.clear()
        self.messages += [{"role": role, "content": text} for role, text in messages]

    def ask(self, text: str, interrupt: Interrupt) -> "RemoteReply":
        """The answer to one more message."""
        messages = [*self.messages, {"role": "user", "content": text}]
        body = {**self._fields, **WITH_USAGE, "messages": messages}
        return RemoteReply(self, self._server, "/v1/chat/completions", body, interrupt)


class RemoteReply(RemoteAnswer):
    """An answer that joins its conversation, unless an error ends it: then the question can be asked again."""

    def __init__(self, conversation: RemoteConversation, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._conversation = conversation

    def __iter__(self) -> Iterator[str]:
        yield from super().__iter__()
        self._conversation.messages = [*self._body["messages"], {"role": "assistant", "content": self.text}]


def sampling_fields(params: SamplingParams, max_tokens: int) -> dict[str, object]:
    """A request's fields that give what these parameters give here; those that ask for nothing are left out.

    What is drawn without a seed gets one, so that an answer that has to be begun again is the same.
    """
    fields: dict[str, object] = {"temperature": params.temperature, "max_tokens": max_tokens}
    nothing = SamplingParams()
    for name in ("top_k", "top_p", "min_p", "repetition_penalty"):
        if (value := getattr(params, name)) != getattr(nothing, name):
            fields[name] = value
    if params.temperature:
        fields["seed"] = secrets.randbits(31) if params.seed is None else params.seed
    return fields


def completion(
    server: RemoteServer,
    prefix: str,
    suffix: str,
    fields: Mapping[str, object],
    interrupt: Interrupt,
    *,
    one_line: bool,
) -> RemoteAnswer:
    """The text between prefix and suffix by any server that speaks OpenAI's completions."""
    prefix, suffix = prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n")
    asked = {**fields, "stop": ["\n"]} if one_line else fields
    return RemoteAnswer(
        server, "/v1/completions", {**asked, **WITH_USAGE, "prompt": prefix, "suffix": suffix}, interrupt
    )


def _unseen(shown: str, again: str) -> str:
    """What of an answer that is told again is new; all of it, on a line of its own, where it became another one."""
    if again.startswith(shown):
        return again[len(shown) :]
    return "" if shown.startswith(again) else f"\n{again}"


def _numbers(timings: Json) -> dict[str, Any]:
    """The statistics that the commands print."""
    return {
        "tokens": timings.get("predicted_n", 0),
        "steps": timings.get("steps", 0),
        "tau": timings.get("tau", 0.0),
        "drafted": timings.get("draft_n", 0),
        "accepted": timings.get("draft_n_accepted", 0),
        "accept_by_slot": timings.get("accept_by_slot", []),
        "steps_by_drafter": timings.get("steps_by_drafter", {}),
        "ms": {"prompt": timings.get("prompt_ms", 0.0), "answer": timings.get("predicted_ms", 0.0)},
        "tokens_per_second": round(timings.get("predicted_per_second", 0.0), 1),
    }
