"""What the engine is and does, and how to change it: models, props, health, metrics, ps; load and stop."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib.metadata import version
from typing import Any

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.engine.lookup import LookupDrafter
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.models.memory.parts import PREFIXES, PROGRAM, Parts, divided, total
from localdflash.models.registry.registry import load_registry
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import ApiError, as_api_error
from localdflash.server.api.http_responses import (
    DONE,
    GONE,
    ClientGone,
    EventStream,
    event,
    json_response,
    until_disconnect,
)
from localdflash.server.api.request_body import read
from localdflash.server.api.schemas import ListenRequest, LoadRequest
from localdflash.server.engine_spec import ROLES
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort, own_key
from localdflash.server.worker import PairWorker

_NO_OPTIONS = ("role", "others")  # fields of /load that are no `Options`


async def health(http: HttpRequest) -> Response:
    """Report whether requests can be answered."""
    engines = http.app.state.shared.engines
    if engines.failed:
        return _unhealthy("the device is lost")
    if any(worker.loaded for worker in engines.workers) or not engines.workers:  # then the next request loads one
        return json_response({"status": "ok"})
    if engines.error is not None:
        return _unhealthy("Loading failed: " + str(as_api_error(engines.error)))
    doing = next((worker.doing for worker in engines.workers if worker.doing), "")
    return _unhealthy("Loading model", **({"doing": doing} if doing else {}))


def _unhealthy(message: str, **more: str) -> Response:
    """Return an error in llama-server's shape, whose clients look for its words."""
    error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
    return json_response({"status": message.lower(), "error": error, **more}, 503)


async def models(http: HttpRequest) -> Response:
    """List the models that are loaded."""
    state: AppState = http.app.state.shared
    await state.ready(state.engines.main)
    # Clients take the first one.
    workers = sorted(state.engines.workers, key=lambda worker: "chat" not in state.engines.roles(worker))
    there = [_model(worker.loaded, worker.loaded_at) for worker in workers if worker.loaded]
    return json_response({"object": "list", "data": there})


async def model(http: HttpRequest) -> Response:
    """Describe a model that is loaded, by name."""
    state: AppState = http.app.state.shared
    loaded = await state.ready(state.engines.main, http.path_params["model"])
    worker = state.engines.worker_of(loaded)
    return json_response(_model(loaded, worker.loaded_at if worker else 0.0))


def _model(loaded: LoadedPair, since: float) -> dict[str, Any]:
    return {
        "id": loaded.files.id,
        "object": "model",
        "created": int(since),
        "owned_by": "localdflash",
        "meta": {
            "n_ctx": loaded.context,
            "n_vocab": loaded.tokenizer.vocab_size,
            "backend": loaded.backend,
            "drafter": _has_drafter(loaded),
            "sampling": loaded.sampling,
        },
    }


def _has_drafter(loaded: LoadedPair) -> bool:
    """Return whether a model drafts, besides lookup."""
    return any(name != LookupDrafter.name for name in loaded.drafters)


async def metrics(http: HttpRequest) -> Response:
    """Report metrics for Prometheus."""
    return Response(http.app.state.shared.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def ps(http: HttpRequest) -> Response:
    """Report what is loaded, how much memory it takes, and what it does; first the pair of the role that is asked for.

    Without a role that is the chat's pair, if there is one.
    """
    state: AppState = http.app.state.shared
    engines = state.engines
    asked = http.query_params.get("role")
    if asked not in (None, *ROLES):
        raise ApiError(400, f"role: unknown; one of {', '.join(ROLES)}", param="role", code="invalid_value")
    worker = engines.worker(asked or engines.main)
    schedulers = [one.scheduler for one in engines.workers if one.scheduler]
    return json_response(
        {
            **(_of_worker(engines, worker) if worker else {}),
            "pairs": [_of_worker(engines, one) for one in engines.workers],
            "requests": sum(one.totals.requests for one in schedulers),
            "running": sum(one.running is not None for one in schedulers),
            "waiting": sum(one.queue_length for one in schedulers),
            "idle_seconds": round(state.idle_seconds(), 3),
            "uptime_seconds": round(time.monotonic() - state.began, 3),
            "version": version("localdflash"),
            "pid": os.getpid(),
        }
    )


def _of_worker(engines: Engines, worker: PairWorker) -> dict[str, Any]:
    """Return what is known of one pair."""
    loaded, scheduler = worker.loaded, worker.scheduler
    about: dict[str, Any] = _about(loaded) if loaded else {"pair": worker.options.pair, "doing": worker.doing}
    if PROGRAM in about.get("memory", ()):
        about["memory"] = _with_prefixes(engines, worker, about["memory"])
    return {
        **about,
        "roles": engines.roles(worker),
        "options": _options(worker.options),
        "since": round(worker.loaded_at, 3) if loaded else None,
        "requests": scheduler.totals.requests if scheduler else 0,
    }


def _options(options: Options) -> dict[str, Any]:
    """Return the options of /load."""
    return {name: getattr(options, name) for name in LoadRequest.__struct_fields__ if name not in _NO_OPTIONS}


def _with_prefixes(engines: Engines, worker: PairWorker, measured: Parts) -> Parts:
    """The prefix cache as a part of its own, without what other pairs take: the program would have both otherwise."""
    held = _prefixes(worker)
    others = [one for one in engines.workers if one is not worker]
    beside = sum(_prefixes(one) + _own(one) for one in others)
    program = {PROGRAM: max(measured[PROGRAM] - held - beside, 0)}
    return {**measured, **program, **({PREFIXES: held} if worker.scheduler else {})}


def _prefixes(worker: PairWorker) -> int:
    scheduler = worker.scheduler
    return scheduler.prefixes.size if scheduler and scheduler.prefixes else 0


def _own(worker: PairWorker) -> int:
    """Return the bytes of a pair in this process's memory, without the program."""
    if not worker.loaded:
        return 0
    measured = worker.loaded.memory()
    on_gpu = worker.loaded.device != "cpu"
    return total(
        {name: size for name, size in (divided(measured)[1] if on_gpu else measured).items() if name != PROGRAM}
    )


def _about(loaded: LoadedPair) -> dict[str, Any]:
    return {
        "pair": loaded.files.id,
        "backend": loaded.backend,
        "context": loaded.context,
        "device": loaded.device,
        "drafter": _has_drafter(loaded),
        "drafters": loaded.drafters,
        "memory": loaded.memory(),
        "predicted": loaded.predicted,
        "rows": loaded.rows,
        "gpu_check": loaded.gpu_check,
        "sampling": loaded.sampling,
        "notice": loaded.notice,
    }


async def load(http: HttpRequest) -> Response:
    """Load another pair, for one role or for all; nothing comes of it if the client leaves while it has to wait."""
    state: AppState = http.app.state.shared
    body = await read(http, LoadRequest)
    role = None if body.role is UNSET else body.role
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    changes = {name: value for name, value in given.items() if name not in _NO_OPTIONS}
    await asyncio.to_thread(_check_pair, body.pair)
    try:
        loaded = await until_disconnect(http.receive, state.engines.load(role, changes, body.others))
    except ClientGone:
        return Response(status_code=GONE)
    except LocaldflashError as error:
        told = as_api_error(error)
        raise ApiError(400 if told.status == 500 else told.status, str(told), code=told.code or "load_failed") from None
    return json_response(_about(loaded))


def _check_pair(pair: str) -> None:
    """Raise ModelError if there is no such pair, before the loaded one is given up."""
    try:
        load_registry().resolve(pair)
    except LocaldflashError as error:
        raise ApiError(404, str(error), param="pair", code="model_not_found") from None


async def stop(http: HttpRequest) -> Response:
    """Stop the daemon."""
    state: AppState = http.app.state.shared
    if state.stop is None:
        raise ApiError(404, "this server is not stopped this way", code="not_found")
    state.stop()
    return json_response({"status": "stopping"})


async def listen(http: HttpRequest) -> Response:
    """Open a port; the one event tells its address. UsageError if it is taken."""
    state: AppState = http.app.state.shared
    body = await read(http, ListenRequest)
    if state.listen is None:
        raise ApiError(404, "this server opens no ports", code="not_found")
    path = paths.key_file()
    return EventStream(_events(state.listen(TcpPort(body.host, body.port, own_key(path), body.hosts, path))))


async def _events(port: AsyncGenerator[str]) -> AsyncGenerator[bytes]:
    async with aclosing(port) as addresses:
        async for url in addresses:
            yield event({"url": url})
    yield DONE
