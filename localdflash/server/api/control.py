"""Endpoints that report on the daemon or control it: models, health, metrics, ps, load, stop and listen."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash import __version__
from localdflash.base.errors import LocaldflashError
from localdflash.base.files import paths
from localdflash.engine.lookup import LookupDrafter
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.memory.parts import PREFIXES, PROGRAM, Parts, split_host_parts, total
from localdflash.models.registry.registry import load_registry, missing_files
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_responses import (
    DONE,
    ApiError,
    EventStream,
    as_api_error,
    bad,
    json_response,
    until_disconnect,
)
from localdflash.server.api.schemas import ListenRequest, LoadRequest, ModelRequest
from localdflash.server.engine_spec import ROLES
from localdflash.server.engines import Engines
from localdflash.server.tcp import TcpPort, load_or_create_key
from localdflash.server.worker import PairWorker

EVENT_SECONDS = 0.1  # interval of checks for new states of pairs
_OPTIONS = [name for name in LoadRequest.__struct_fields__ if name not in ("role", "others")]  # fields of `Options`


async def health(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /health: whether a pair can answer requests; 503 while loading or after a failure."""
    engines = state.engines
    if engines.device_lost:
        return _unhealthy("the device is lost")
    if any(worker.loaded for worker in engines.workers) or not engines.workers:  # no worker: requests load a pair
        return json_response({"status": "ok"})
    if engines.error is not None:
        return _unhealthy("Loading failed: " + str(as_api_error(engines.error)))
    doing = next((worker.doing for worker in engines.workers if worker.doing), "")
    return _unhealthy("Loading model", **({"doing": doing} if doing else {}))


def _unhealthy(message: str, **more: str) -> Response:
    """Return a 503 response like llama-server's: its clients look for the message "Loading model"."""
    error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
    return json_response({"status": message.lower(), "error": error, **more}, 503)


async def models(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /v1/models: list the loaded models, after loading the main role's pair if necessary."""
    await state.ready(state.engines.main_role)
    loaded = [_describe_model(worker.loaded, worker.loaded_at) for worker in state.engines.workers if worker.loaded]
    return json_response({"object": "list", "data": loaded})


async def router_models(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /models like llama-server's router: list loaded and installed pairs with their states; load nothing."""
    installed = dict.fromkeys(await asyncio.to_thread(_installed_pairs), "unloaded")
    rows = {}
    for worker in state.engines.workers:
        if loaded := worker.loaded:
            rows[worker.options.pair] = {**_describe_model(loaded, worker.loaded_at), "id": worker.options.pair}
            installed.pop(loaded.files.id, None)
    others = installed | _states(state.engines)
    rows |= {pair: _model_row(pair, value) for pair, value in others.items() if pair not in rows}
    return json_response({"object": "list", "data": list(rows.values())})


def _installed_pairs() -> list[str]:
    return [pair.id for pair in load_registry().all_pairs() if pair.backends and not missing_files(pair)]


def _states(engines: Engines) -> dict[str, str]:
    """Return llama-server's names for the states of the daemon's pairs, by the name that they were loaded by."""
    states = dict.fromkeys(engines.on_demand.values(), "unloaded")
    for worker in engines.workers:
        states[worker.options.pair] = "loaded" if worker.loaded else "unloaded" if worker.error else "loading"
    return states


async def model_events(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /models/sse like llama-server's router: an event for each new state of a pair."""
    return EventStream(_state_events(state))


async def _state_events(state: AppState) -> AsyncGenerator[Any]:
    old = _states(state.engines)
    while not state.is_stopping:
        await asyncio.sleep(EVENT_SECONDS)
        new = _states(state.engines)
        for pair in old | new:
            before, value = old.get(pair, "unloaded"), new.get(pair, "unloaded")
            if before != value:
                failure = {"exit_code": int(before == "loading")} if value == "unloaded" else {}
                yield {"model": pair, "event": "model_status", "data": {"status": value, **failure}}
        old = new


async def load_model(http: HttpRequest, state: AppState, body: ModelRequest) -> Response:
    """Serve POST /models/load like llama-server's router: load a pair that GET /models lists, and wait for it."""
    states = _states(state.engines)
    if states.get(body.model, "unloaded") != "unloaded":
        raise bad("model", f"{body.model!r} is already {states[body.model]}")
    if body.model not in {*states, *await asyncio.to_thread(_installed_pairs)}:
        message = f"GET /models does not list {body.model!r}; `localdflash models pull` downloads a pair"
        raise ApiError(404, message, param="model", code="model_not_found")
    await until_disconnect(http.receive, state.engines.load_next_to_others(body.model))
    return json_response({"success": True})


async def unload_model(http: HttpRequest, state: AppState, body: ModelRequest) -> Response:
    """Serve POST /models/unload like llama-server's router: unload a pair after its running requests."""
    worker = state.engines.worker_called(body.model)
    if not worker or worker.error:
        raise bad("model", f"{body.model!r} is not loaded")
    await until_disconnect(http.receive, state.engines.unload(worker))
    return json_response({"success": True})


async def model(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /v1/models/MODEL: describe a loaded model; ApiError 404 if it is not loaded."""
    loaded = await state.ready(state.engines.main_role, http.path_params["model"])
    worker = state.engines.worker_of(loaded)
    return json_response(_describe_model(loaded, worker.loaded_at if worker else 0.0))


def _describe_model(loaded: LoadedPair, since: float) -> dict[str, Any]:
    return {
        **_model_row(loaded.files.id, "loaded"),
        "created": int(since),
        "meta": {
            "n_ctx": loaded.context,
            "n_vocab": loaded.tokenizer.vocab_size,
            "backend": loaded.backend,
            "drafter": _has_drafter(loaded),
            "sampling": loaded.sampling,
        },
    }


def _model_row(name: str, state: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "localdflash", "status": {"value": state}}


def _has_drafter(loaded: LoadedPair) -> bool:
    """Return whether the pair has a drafter other than prompt lookup."""
    return any(name != LookupDrafter.name for name in loaded.drafters)


async def metrics(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /metrics for Prometheus."""
    return Response(state.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def ps(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /ps: status of the pair of `?role=` (default: the main role), of all pairs, and of the daemon."""
    engines = state.engines
    role = http.query_params.get("role", engines.main_role)
    if role not in ROLES:
        raise bad("role", f"unknown; one of {', '.join(ROLES)}")
    worker = engines.worker(role)
    schedulers = [one.scheduler for one in engines.workers if one.scheduler]
    return json_response(
        {
            **(_worker_status(engines, worker) if worker else {}),
            "pairs": [_worker_status(engines, one) for one in engines.workers],
            "requests": sum(one.totals.requests for one in schedulers),
            "running": sum(one.running is not None for one in schedulers),
            "waiting": sum(one.queue_length for one in schedulers),
            "idle_seconds": round(state.activity.idle_seconds, 3),
            "uptime_seconds": round(time.monotonic() - state.began, 3),
            "version": __version__,
            "pid": os.getpid(),
        }
    )


def _worker_status(engines: Engines, worker: PairWorker) -> dict[str, Any]:
    """Return the status of one worker and its pair; while the pair loads, `doing` describes the progress."""
    loaded, scheduler = worker.loaded, worker.scheduler
    status: dict[str, Any] = _pair_status(loaded) if loaded else {"pair": worker.options.pair, "doing": worker.doing}
    if PROGRAM in status.get("memory", ()):
        status["memory"] = _with_prefixes(engines, worker, status["memory"])
    return {
        **status,
        "roles": engines.roles(worker),
        "options": {name: getattr(worker.options, name) for name in _OPTIONS},
        "since": round(worker.loaded_at, 3) if loaded else None,
        "requests": scheduler.totals.requests if scheduler else 0,
    }


def _with_prefixes(engines: Engines, worker: PairWorker, measured: Parts) -> Parts:
    """Add the prefix cache as a part of the memory; subtract it, and all other pairs, from the program's part."""
    held = worker.prefix_bytes
    others = sum(one.prefix_bytes + _process_bytes(one) for one in engines.workers if one is not worker)
    program = {PROGRAM: max(measured[PROGRAM] - held - others, 0)}
    return {**measured, **program, **({PREFIXES: held} if worker.scheduler else {})}


def _process_bytes(worker: PairWorker) -> int:
    """Return the bytes of host memory that a pair occupies, without the program's part."""
    if not worker.loaded:
        return 0
    measured = worker.loaded.memory()
    in_process = measured if worker.loaded.device == "cpu" else split_host_parts(measured)[1]
    return total({**in_process, PROGRAM: 0})


def _pair_status(loaded: LoadedPair) -> dict[str, Any]:
    return {
        "pair": loaded.files.id,
        "backend": loaded.backend,
        "context": loaded.context,
        "device": loaded.device,
        "drafter": _has_drafter(loaded),
        "drafters": loaded.drafters,
        "memory": loaded.memory(),
        "predicted": loaded.predicted_memory,
        "rows": loaded.width_status,
        "gpu_check": loaded.gpu_check,
        "sampling": loaded.sampling,
        "notice": loaded.notice,
    }


async def load(http: HttpRequest, state: AppState, body: LoadRequest) -> Response:
    """Serve POST /load: load a pair for one role or all. A client that disconnects before loading starts stops it."""
    try:  # check the name before any pair is unloaded
        await asyncio.to_thread(lambda: load_registry().resolve(body.pair))
    except LocaldflashError as error:
        raise ApiError(404, str(error), param="pair", code="model_not_found") from None
    changes = {name: value for name in _OPTIONS if (value := getattr(body, name)) is not UNSET}
    loading = state.engines.load(body.role or None, changes, body.others)
    return json_response(_pair_status(await until_disconnect(http.receive, loading)))


async def stop(http: HttpRequest, state: AppState) -> Response:
    """Serve POST /stop: stop the daemon."""
    if state.stop is None:
        raise ApiError(404, "this server cannot be stopped over HTTP", code="not_found")
    state.stop()
    return json_response({"status": "stopping"})


async def listen(http: HttpRequest, state: AppState, body: ListenRequest) -> Response:
    """Serve POST /listen: open a port and send its URL as the first event. It closes when the client disconnects."""
    if state.listen is None:
        raise ApiError(404, "this server cannot open ports over HTTP", code="not_found")
    path = paths.key_file()
    port = TcpPort(body.host, body.port, load_or_create_key(path), hosts=body.hosts, key_file=path)
    return EventStream(_port_events(state.listen(port)))


async def _port_events(urls: AsyncGenerator[str]) -> AsyncGenerator[Any]:
    async with aclosing(urls) as source:
        async for url in source:
            yield {"url": url}
    yield DONE
