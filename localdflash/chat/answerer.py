"""Client that requests chat answers from the daemon or a remote server, without blocking the event loop."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import (
    DeviceError,
    EngineDisconnect,
    LocaldflashError,
    ModelBusy,
    ModelError,
    NoLoadedModel,
)
from localdflash.base.files.typed_paths import absolute_pair
from localdflash.chat.answer_sources import NamedServer, ServerSource, run_in_thread
from localdflash.chat.messages import Finish, Message, StepRecord
from localdflash.chat.request_fields import localdflash_fields, openai_fields, template_fields, wire_messages
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.models.backend_names import CHECKING_GPU
from localdflash.server.engine_spec import EvictionPolicy

if TYPE_CHECKING:  # slow to import: `_open` imports them in a thread
    from localdflash.chat.answer_events import AnswerReader, Chunk
    from localdflash.server.address import Address
    from localdflash.server.client import ClientConnection

MAX_RESTARTS = 2  # restarts of the server during one answer
POLL_SECONDS = 0.1  # interval of status queries while the daemon loads
YIELD_SECONDS = 0.004  # interval at which a stream lets other tasks run


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """Event: text added to the answer, perhaps none, and its verify step if the server reports steps."""

    text: str
    step: StepRecord | None = None


@dataclass(frozen=True, slots=True)
class AnswerRestart:
    """Event: the answer was requested again, and differs: discard the text received so far."""


@dataclass(frozen=True, slots=True)
class Done:
    """Event: the answer ended. With finish "gone", `error` says why the server could not continue."""

    finish: Finish
    numbers: Mapping[str, Any]
    error: LocaldflashError | None = None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Description of the loaded pair; of a remote server, only `pair` is known. A `context` of 0 means unknown."""

    pair: str
    context: int = 0
    backend: str = ""
    device: str = ""
    has_drafter: bool = False
    notice: str = ""
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by part
    rows: str = ""  # bit-exact batch widths of llama.cpp, and their cost
    drafters: Sequence[str] | None = None  # active drafters; None: unknown
    sampling: Mapping[str, float] = field(default_factory=dict)  # recommended by the model's makers
    gpu_check: str = ""  # status of the CUDA engine with this pair


class Answerer:
    """Client of one chat. `say` receives lines for the user.

    `stage` is "" before the first use, then "starting", "loading" (perhaps with details), "waiting" for another chat,
    "ready" or "disconnected". If an answer in another chat blocks the load of a pair, `when_busy` is called with the
    pair and the ModelBusy error; it returns the eviction policy, or raises the error.
    """

    def __init__(self, source: ServerSource, say: Callable[[str], None]) -> None:
        self.info: ServerInfo | None = None
        self.stage = ""
        self.on_stage: Callable[[str], None] = lambda _: None
        self.is_localdflash = not isinstance(source, NamedServer)  # whether the server accepts our additional fields
        self.when_busy: Callable[[str, ModelBusy], Awaitable[EvictionPolicy]] = self._wait_for_others
        self._is_local = self.is_localdflash  # False for remote servers, even localdflash's
        self._source, self._say = source, say
        self._address: Address | None = None
        self._opening: asyncio.Task[ServerInfo] | None = None
        self._idle: list[ClientConnection[Chunk]] = []

    async def ready(self) -> ServerInfo:
        """Wait until the model is loaded, and return its description. If this is cancelled, loading continues."""
        if self._address and self.info:
            return self.info
        if not self._opening:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> ServerInfo:
        try:
            self._set_stage("starting")
            await run_in_thread(_import_client, self._say, self._set_stage)
            self._address = await self._source.open(self._say, self._set_stage)
            self.info = await self._query_status()
            self._set_stage("ready")
            return self.info
        except BaseException:
            self._disconnect()
            raise
        finally:
            self._opening = None

    async def _update_after_gpu_check(self, info: ServerInfo) -> ServerInfo:
        """If the pair's GPU check was running, query the status again, and tell the user the result of the check."""
        if info.gpu_check != CHECKING_GPU:
            return info
        self.info = now = await self._query_status()
        if now.backend != info.backend:
            self._say(f"{now.pair} runs on {now.backend} from now on")
        elif now.gpu_check != CHECKING_GPU:
            self._say(f"{now.backend} runs {now.pair}; no CUDA engine: {now.gpu_check}")
        return now

    async def _query_status(self) -> ServerInfo:
        """Return the status of this chat's pair; query it until the pair is loaded."""
        if isinstance(self._source, NamedServer):
            return await self._query_remote_server(self._source)
        while "context" not in (status := _select_pair(await self._get("/ps?role=chat"), self._source.pair)):
            if "pair" not in status:
                raise EngineDisconnect("the chat's model was unloaded: ask again")
            self._set_stage(f"loading: {status['doing']}" if status.get("doing") else "loading")
            await asyncio.sleep(POLL_SECONDS)
        info = _parse_info(status)
        self._source.remember_pair(info.pair)
        return info

    async def _query_remote_server(self, source: NamedServer) -> ServerInfo:
        try:
            known = _models_by_id(await self._get("/v1/models"))
        except (EngineDisconnect, DeviceError):
            raise
        except LocaldflashError:  # the server has no model list
            if not source.pair:
                raise
            return ServerInfo(source.pair)
        name = source.pair or next(iter(known), "default")
        self.is_localdflash = any(model.get("owned_by") == "localdflash" for model in known.values())
        if not self.is_localdflash:
            return ServerInfo(name)
        if name not in known:  # else the server would answer with the pair that it has loaded
            raise _no_such_model(name, known)
        meta = known[name].get("meta")
        return _parse_info({**meta, "pair": name, "context": meta.get("n_ctx")} if isinstance(meta, dict) else {})

    def _set_stage(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.on_stage(stage)

    def _disconnect(self) -> None:
        """Forget the server's address, so that the next request looks for the server, or starts it, again."""
        self._address = None
        self._close_idle()
        self._set_stage("disconnected")

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
        self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "", continue_last: bool = False
    ) -> AsyncGenerator[AnswerPiece | AnswerRestart | Done, None]:
        """Yield the events of an answer, or with `continue_last` of the rest of the last message. Closing stops it."""
        requested_at = time.perf_counter()
        body: dict[str, object] = {}
        reader: AnswerReader | None = None
        for restarts in range(MAX_RESTARTS + 1):
            try:
                info = await self._update_after_gpu_check(await self.ready())
                from localdflash.chat import answer_events

                if not reader:
                    settings = settings.with_defaults(info.sampling, info.context) if self.is_localdflash else settings
                    reader = answer_events.AnswerReader(settings, requested_at)
                    own = localdflash_fields(settings, continue_last=continue_last)
                    fields = own if self.is_localdflash else openai_fields(settings)
                    body = {"messages": wire_messages(messages, system, is_localdflash=self.is_localdflash)} | fields
                async with aclosing(self._chunks({**body, "model": info.pair})) as chunks:
                    async for chunk in chunks:
                        for event in _make_events(*reader.add_chunk(chunk)):
                            yield event
                for event in _make_events(*reader.replay.finish()):
                    yield event
                kind = {"is_localdflash": self.is_localdflash}
                yield Done(reader.finish(**kind), reader.numbers(**kind))
                return
            except NoLoadedModel:
                if not self._is_local or restarts == MAX_RESTARTS:
                    raise
                await self.load(pair := self._source.pair)
                self._say(f"{pair} was unloaded for another model; it is loaded again")
            except (EngineDisconnect, DeviceError) as error:
                self._disconnect()
                if not self._source.can_restart or restarts == MAX_RESTARTS:
                    if not (reader and reader.replay.text):
                        raise
                    yield Done("gone", reader.numbers(is_localdflash=self.is_localdflash), error)
                    return
            if reader:
                reader.begin_again()

    async def _chunks(self, body: Mapping[str, object]) -> "AsyncGenerator[Chunk, None]":
        """Yield the events of one request; EngineDisconnect if the stream ends without a finish reason."""
        last_yield, is_complete = time.perf_counter(), False
        async with (
            self._connection() as connection,
            aclosing(connection.events("/v1/chat/completions", body)) as events,
        ):
            async for chunk in events:
                yield chunk
                is_complete = is_complete or any(choice.finish_reason for choice in chunk.choices)
                if time.perf_counter() - last_yield > YIELD_SECONDS:
                    await asyncio.sleep(0)
                    last_yield = time.perf_counter()
        if not is_complete:
            raise EngineDisconnect("the daemon closed the connection during an answer")

    async def read_ahead(self, messages: Sequence[Message], settings: ChatSettings, *, system: str = "") -> None:
        """Let a running local daemon prefill the prompt while the user still types. Cancelling stops the prefill."""
        if not self._is_local or not self._address or not self.info:
            return
        body = {"model": self.info.pair, "max_tokens": 0, "messages": wire_messages(messages, system)}
        with suppress(LocaldflashError):
            await self._post("/v1/chat/completions", body | template_fields(settings))

    async def count(self, messages: Sequence[Message], *, system: str, settings: ChatSettings) -> int | None:
        """Return the number of prompt tokens of these messages; None if the server does not report it."""
        info = await self.ready()
        if not self.is_localdflash:
            return None
        body = {"model": info.pair, "messages": wire_messages(messages, system), "count": True}
        body |= template_fields(settings)
        count = (await self._post_with_retry("/apply-template", body)).get("tokens")
        if not isinstance(count, int):
            raise LocaldflashError("unexpected reply from the daemon: no token count; is it another version?")
        return count

    async def check_model(self, pair: str) -> None:
        """Raise ModelError if there is no model of this id or path, or if its files are missing."""
        if not isinstance(self._source, NamedServer):
            await asyncio.to_thread(_find_target, absolute_pair(pair))
            return
        await self.ready()
        known = _models_by_id(await self._get("/v1/models"))
        if pair not in known:
            raise _no_such_model(pair, known)

    async def load(self, pair: str) -> ServerInfo:
        """Load another pair, by id or path; if that fails, the chat keeps its pair. Cancelling stops the wait."""
        await self.ready()
        if isinstance(self._source, NamedServer):
            await self.check_model(pair)
            self._source.remember_pair(pair)
            self.info = await self._query_status()
            return self.info
        self._set_stage("loading")
        body = {"pair": absolute_pair(pair), "role": "chat"}
        try:
            try:
                status = await self._post_with_retry("/load", {**body, "others": "refuse"})
            except ModelBusy as busy:
                self._set_stage("waiting")
                others = await self.when_busy(pair, busy)
                self._set_stage("waiting" if others == "wait" else "loading")
                status = await self._post_with_retry("/load", {**body, "others": others})
        finally:
            if self._address:
                self._set_stage("ready")
        self.info = info = _parse_info(status)
        self._source.remember_pair(info.pair)
        return info

    async def _wait_for_others(self, pair: str, busy: ModelBusy) -> EvictionPolicy:
        self._say(f"{busy}; waiting to load {pair} ...")
        return "wait"

    async def _post_with_retry(self, target: str, body: Mapping[str, object]) -> dict[str, Any]:
        """Send a POST request; if the server has ended since the last one, restart it and send the request again."""
        try:
            return await self._post(target, body)
        except (EngineDisconnect, DeviceError):
            self._disconnect()
            if not self._source.can_restart:
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
        """Yield a connection for one request, and keep it for later requests."""
        from localdflash.chat.answer_events import decode_chunk
        from localdflash.server.client import ClientConnection

        assert self._address
        connection = self._idle.pop() if self._idle else ClientConnection(self._address, decode_chunk)
        try:
            yield connection
        finally:
            self._idle.append(connection)  # if its response was not read to the end, the next request reconnects


def _select_pair(status: Mapping[str, Any], pair: str) -> Mapping[str, Any]:
    """Return the entry of a pair in the reply of /ps, {} if it is missing; for "", the default chat pair's fields."""
    if not pair:
        return status
    try:
        return next((entry for entry in status["pairs"] if pair in (entry["pair"], entry["options"]["pair"])), {})
    except (KeyError, TypeError):
        raise LocaldflashError("unexpected reply from the daemon; is it another version?") from None


def _import_client(*_: object) -> None:
    import localdflash.chat.answer_events
    import localdflash.server.client  # noqa: F401


def _find_target(pair: str) -> None:
    from localdflash.models.registry.registry import load_registry, local_files

    local_files(replace(load_registry().resolve(pair), drafter=None))  # without the drafter, which options may replace


def _models_by_id(reply: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the entries of a reply of /v1/models; {} if it has another form."""
    models = reply.get("data")
    models = models if isinstance(models, list) else []
    return {str(model["id"]): model for model in models if isinstance(model, dict) and model.get("id")}


def _no_such_model(name: str, known: Iterable[str]) -> ModelError:
    return ModelError(f"the server has no model {name!r}; it has {', '.join(known) or 'none'}")


def _parse_info(status: Mapping[str, Any]) -> ServerInfo:
    """Parse the description of a loaded pair in a reply of /ps, /load or /v1/models."""
    try:
        return ServerInfo(
            str(status["pair"]),
            int(status["context"] or 0),
            str(status.get("backend", "")),
            str(status.get("device", "")),
            bool(status.get("drafter", False)),
            str(status.get("notice") or ""),
            {str(part): int(size) for part, size in (status.get("memory") or {}).items()},
            str(status.get("rows") or ""),
            [str(name) for name in status["drafters"]] if "drafters" in status else None,
            {name: value for name, value in (status.get("sampling") or {}).items() if isinstance(value, int | float)},
            str(status.get("gpu_check") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise LocaldflashError("unexpected reply from the daemon; is it another version?") from None


def _make_events(differs: bool, parts: Sequence[tuple[str, StepRecord | None]]) -> list[AnswerPiece | AnswerRestart]:
    return [*([AnswerRestart()] if differs else []), *(AnswerPiece(text, step) for text, step in parts)]
