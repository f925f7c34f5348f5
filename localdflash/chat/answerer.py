"""Client of a chat for the daemon or a remote server; nothing here blocks the event loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import (
    DeviceError,
    EngineDisconnect,
    LocaldflashError,
    ModelBusy,
    ModelError,
    NoLoadedModel,
)
from localdflash.chat.answer_sources import NamedServer, ServerSource, run_in_thread
from localdflash.chat.messages import Finish, Message, StepRecord, prompt_text
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.backend_names import CHECKING_GPU
from localdflash.server.engine_spec import Others
from localdflash.text.thoughts import split

if TYPE_CHECKING:  # slow to import; `_open` does it in a thread
    from localdflash.chat.answer_events import AnswerReader, Chunk
    from localdflash.server.address import Address
    from localdflash.server.client import ClientConnection

MAX_RESTARTS = 2  # during one answer
POLL_SECONDS = 0.1  # between two queries of a daemon that is loading
YIELD_SECONDS = 0.004  # after which a stream lets other tasks run


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Added text, perhaps none, and the step that added it if the server reports steps."""

    text: str
    step: StepRecord | None = None


@dataclass(frozen=True, slots=True)
class AnswerRestart:
    """Event: the answer was requested again and differs. Discard the text received so far."""


@dataclass(frozen=True, slots=True)
class Done:
    """End of an answer. With finish "gone", `error` says why the server could not continue."""

    finish: Finish
    numbers: Mapping[str, Any]
    error: LocaldflashError | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Loaded model. Of a remote server only the model's name is known; a `context` of 0 means unknown."""

    pair: str
    context: int = 0
    backend: str = ""
    device: str = ""
    drafter: bool = False
    notice: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by part
    rows: str = ""  # what llama.cpp's are, and what that costs
    drafters: Sequence[str] | None = None  # by name; None: not known
    sampling: Mapping[str, float] = field(default_factory=dict)  # fields of SamplingParams that its makers recommend
    gpu_check: str = ""  # status of the CUDA engine with this pair


class Answerer:
    """Client of one chat; `say` receives lines for the user.

    `stage` is "" before the first use, then "starting", "loading" (perhaps with details), "waiting" for another chat,
    "ready" or "gone". `when_busy` decides about an answer in another chat that loading this chat's pair would end, or
    raises the given error.
    """

    def __init__(self, source: ServerSource, say: Callable[[str], None]) -> None:
        self.about: ServerInfo | None = None
        self.stage = ""
        self.on_stage: Callable[[str], None] = lambda _: None
        self.is_localdflash = not isinstance(source, NamedServer)  # and so knows more than OpenAI's interface
        self.when_busy: Callable[[str, ModelBusy], Awaitable[Others]] = self._wait_for_others
        self._is_local = self.is_localdflash
        self._source, self._say = source, say
        self._address: Address | None = None
        self._opening: asyncio.Task[ServerInfo] | None = None
        self._idle: list[ClientConnection[Chunk]] = []

    async def ready(self) -> ServerInfo:
        """Return the loaded model as soon as it is loaded. Cancelling this leaves the loading to the next caller."""
        if self._address and self.about:
            return self.about
        if not self._opening:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> ServerInfo:
        try:
            self._enter("starting")
            await run_in_thread(_import_client, self._say, self._enter)
            self._address = await self._source.open(self._say, self._enter)
            self.about = await self._look()
            self._enter("ready")
            return self.about
        except BaseException:
            self._lose()
            raise
        finally:
            self._opening = None

    async def _after_check(self, about: ServerInfo) -> ServerInfo:
        """Return the status of a pair anew if its GPU check was running; report what came of the check."""
        if about.gpu_check != CHECKING_GPU:
            return about
        self.about = now = await self._look()
        if now.backend != about.backend:
            self._say(f"{now.pair} runs on {now.backend} from now on")
        elif now.gpu_check != CHECKING_GPU:
            self._say(f"{now.backend} runs {now.pair}; no CUDA engine: {now.gpu_check}")
        return now

    async def _look(self) -> ServerInfo:
        """Query the status of this chat's pair until it is loaded."""
        if isinstance(self._source, NamedServer):
            return await self._look_at_another(self._source)
        while "context" not in (told := _select_pair(await self._get("/ps?role=chat"), self._source.pair)):
            if "pair" not in told:
                raise EngineDisconnect("the chat's model was unloaded: ask again")
            self._enter(f"loading: {told['doing']}" if told.get("doing") else "loading")
            await asyncio.sleep(POLL_SECONDS)
        about = _parse_info(told)
        self._source.loaded(about.pair)
        return about

    async def _look_at_another(self, source: NamedServer) -> ServerInfo:
        try:
            models = (await self._get("/v1/models")).get("data")
        except (EngineDisconnect, DeviceError):
            raise
        except LocaldflashError:  # not every server has the list
            if not source.pair:
                raise
            return ServerInfo(source.pair)
        models = models if isinstance(models, list) else []
        known = {str(one["id"]): one for one in models if isinstance(one, dict) and one.get("id")}
        name = source.pair or next(iter(known), "default")
        model = known.get(name, {})
        self.is_localdflash = model.get("owned_by") == "localdflash"
        if not self.is_localdflash:
            return ServerInfo(name)
        meta = model.get("meta")
        return _parse_info({**meta, "pair": name, "context": meta.get("n_ctx")} if isinstance(meta, dict) else {})

    def _enter(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.on_stage(stage)

    def _lose(self) -> None:
        """Mark the server as gone: the next request looks for it again."""
        self._address = None
        self._close_idle()
        self._enter("gone")

    async def close(self) -> None:
        """Close all connections, and cancel a pending start."""
        if self._opening:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._close_idle()
        await self._source.close()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def answer(
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "", goes_on: bool = False
    ) -> AsyncGenerator[AnswerPiece | AnswerRestart | Done, None]:
        """Yield the answer, or with `goes_on` the rest of the last message. Closing this stops the engine."""
        asked = time.perf_counter()
        body: dict[str, object] = {}
        reading: AnswerReader | None = None
        for restarts in range(MAX_RESTARTS + 1):
            try:
                about = await self._after_check(await self.ready())
                from localdflash.chat import answer_events

                if not reading:
                    settings = settings.resolved(about.sampling, about.context) if self.is_localdflash else settings
                    reading = answer_events.AnswerReader(settings, asked)
                    fields = own_fields(settings, goes_on=goes_on) if self.is_localdflash else openai_fields(settings)
                    body = {"messages": wire_messages(messages, system, is_localdflash=self.is_localdflash)} | fields
                async with aclosing(self._chunks({**body, "model": about.pair})) as chunks:
                    async for chunk in chunks:
                        for one in _make_events(*reading.take(chunk)):
                            yield one
                for one in _make_events(*reading.replay.finish()):
                    yield one
                kind = {"is_localdflash": self.is_localdflash}
                yield Done(reading.finish(**kind), reading.numbers(**kind))
                return
            except NoLoadedModel:
                if not self._is_local or restarts == MAX_RESTARTS:
                    raise
                await self.load(pair := self._source.pair)
                self._say(f"{pair} had made room for another model: it is loaded again")
            except (EngineDisconnect, DeviceError) as error:
                self._lose()
                if not self._source.restarts or restarts == MAX_RESTARTS:
                    if not (reading and reading.replay.text):
                        raise
                    yield Done("gone", reading.numbers(is_localdflash=self.is_localdflash), error)
                    return
            if reading:
                reading.begin_again()

    async def _chunks(self, body: Mapping[str, object]) -> "AsyncGenerator[Chunk, None]":
        """Yield the events of one request; EngineDisconnect if the stream breaks off."""
        breath, whole = time.perf_counter(), False
        async with (
            self._connection() as connection,
            aclosing(connection.events("/v1/chat/completions", body)) as events,
        ):
            async for chunk in events:
                yield chunk
                whole = whole or any(choice.finish_reason for choice in chunk.choices)
                if time.perf_counter() - breath > YIELD_SECONDS:
                    await asyncio.sleep(0)
                    breath = time.perf_counter()
        if not whole:
            raise EngineDisconnect("the engine closed the connection during an answer")

    async def read_ahead(self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "") -> None:
        """Let a running local daemon prefill a prompt that is still being written. Cancelling this stops it."""
        if not self._is_local or not self._address or not self.about:
            return
        body = {"model": self.about.pair, "max_tokens": 0, "messages": wire_messages(messages, system)}
        with suppress(LocaldflashError):
            await self._post("/v1/chat/completions", body | template_fields(settings))

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        """Return the number of prompt tokens of these messages; None if the server does not report it."""
        about = await self.ready()
        if not self.is_localdflash:
            return None
        body = {"model": about.pair, "messages": wire_messages(messages, system), "count": True}
        body |= template_fields(settings)
        told = (await self._again_if_gone("/apply-template", body)).get("tokens")
        if not isinstance(told, int):
            raise LocaldflashError("unexpected reply from the engine: no token count; is it another version?")
        return told

    async def load(self, pair: str) -> ServerInfo:
        """Load another pair for this chat. If that fails, the old one stays. Cancelling this stops the wait."""
        await self.ready()
        if isinstance(self._source, NamedServer):
            return await self._name(self._source, pair)
        self._enter("loading")
        body = {"pair": pair, "role": "chat"}
        try:
            try:
                told = await self._again_if_gone("/load", {**body, "others": "refuse"})
            except ModelBusy as busy:
                self._enter("waiting")
                others = await self.when_busy(pair, busy)
                self._enter("waiting" if others == "wait" else "loading")
                told = await self._again_if_gone("/load", {**body, "others": others})
        finally:
            if self._address:
                self._enter("ready")
        self.about = about = _parse_info(told)
        self._source.loaded(about.pair)
        return about

    async def _wait_for_others(self, pair: str, busy: ModelBusy) -> Others:
        self._say(f"{busy}; waiting to load {pair} ...")
        return "wait"

    async def _name(self, source: NamedServer, model: str) -> ServerInfo:
        """Select another model of a remote server."""
        models = (await self._get("/v1/models")).get("data")
        if not any(isinstance(one, dict) and one.get("id") == model for one in models or ()):
            raise ModelError(f"the server has no model {model!r}")
        source.loaded(model)
        self.about = await self._look()
        return self.about

    async def _again_if_gone(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        """POST, and repeat it once if the server has gone away since the last request."""
        try:
            return await self._post(target, body)
        except (EngineDisconnect, DeviceError):
            self._lose()
            if not self._source.restarts:
                raise
        await self.ready()
        return await self._post(target, body)

    async def _get(self, target: str) -> dict[str, Any]:
        async with self._connection() as connection:
            return await connection.get(target)

    async def _post(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        async with self._connection() as connection:
            return await connection.post(target, body)

    @asynccontextmanager
    async def _connection(self) -> "AsyncIterator[ClientConnection[Chunk]]":
        """Yield a connection that no other request uses; it is reused afterwards if possible."""
        from localdflash.chat.answer_events import decode_chunk
        from localdflash.server.client import ClientConnection

        assert self._address
        connection = self._idle.pop() if self._idle else ClientConnection(self._address, decode_chunk)
        try:
            yield connection
        finally:
            self._idle.append(connection)  # closed by itself, unless its last answer was read to the end


def _select_pair(told: Mapping[str, Any], pair: str) -> Mapping[str, Any]:
    """Return the entry of a pair in the answer of /ps; of the default chat pair for ""."""
    if not pair:
        return told
    try:
        return next((one for one in told["pairs"] if pair in (one["pair"], one["options"]["pair"])), {})
    except (KeyError, TypeError):
        raise LocaldflashError("unexpected reply from the engine; is it another version?") from None


def _import_client(*_: object) -> None:
    import localdflash.chat.answer_events
    import localdflash.server.client  # noqa: F401


def _parse_info(told: Mapping[str, Any]) -> ServerInfo:
    """Return the loaded model, from the answer of /ps, of /load or of /v1/models."""
    try:
        return ServerInfo(
            str(told["pair"]),
            int(told["context"] or 0),
            str(told.get("backend", "")),
            str(told.get("device", "")),
            bool(told.get("drafter", False)),
            str(told.get("notice") or ""),
            {str(part): int(size) for part, size in (told.get("memory") or {}).items()},
            str(told.get("rows") or ""),
            [str(name) for name in told["drafters"]] if "drafters" in told else None,
            {name: value for name, value in (told.get("sampling") or {}).items() if isinstance(value, int | float)},
            str(told.get("gpu_check") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LocaldflashError("unexpected reply from the engine; is it another version?") from None


def _make_events(anew: bool, told: Sequence[tuple[str, StepRecord | None]]) -> list[AnswerPiece | AnswerRestart | Done]:
    return [*([AnswerRestart()] if anew else []), *(AnswerPiece(text, step) for text, step in told)]


def wire_messages(messages: Sequence[Message], system: str, *, is_localdflash: bool = True) -> list[dict[str, str]]:
    """Return the messages for the API; remote servers get no thoughts of earlier answers."""
    wire = [{"role": "system", "content": system}] if system else []
    for message in messages:
        text = prompt_text(message)
        text = text if is_localdflash or message.role != "assistant" else split(text)[1]
        wire.append({"role": message.role, "content": text})
    return wire


def openai_fields(settings: ChatSettings) -> dict[str, object]:
    """Return the sampling fields of OpenAI's API, without defaults and unset ones."""
    fields: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
    unset = {"temperature": (None,), "top_p": (None, 1.0), "max_tokens": (None, 0), "seed": (None,)}
    return fields | {name: value for name, none in unset.items() if (value := getattr(settings, name)) not in none}


def own_fields(settings: ChatSettings, *, goes_on: bool) -> dict[str, object]:
    """Return all fields of resolved settings; sampling gets a seed, so that a repeated request has the same answer."""
    fields = openai_fields(settings) | template_fields(settings, goes_on=goes_on)
    fields |= {"steps": True, "end_repeats": True}
    fields["reasoning_format"] = "none"  # one text, whose tokens have the sizes that the steps tell
    nothing = SamplingParams()
    for name in ("top_k", "min_p", "repetition_penalty"):
        if (value := getattr(settings, name)) != getattr(nothing, name):
            fields[name] = value
    if settings.temperature and settings.seed is None:
        import secrets

        fields["seed"] = secrets.randbits(31)
    if not settings.draft:
        fields["draft"] = False
    return fields


def template_fields(settings: ChatSettings, *, goes_on: bool = False) -> dict[str, object]:
    """Return the fields, besides the messages, that decide the prompt."""
    fields: dict[str, object] = {"continue_final_message": True} if goes_on else {}
    return fields | {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
