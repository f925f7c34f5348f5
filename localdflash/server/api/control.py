"""What the engine is and does, and how to change it: models, props, health, metrics, ps; load and stop."""

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from msgspec import UNSET
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.backend.options import Options
from localdflash.backend.parts import PREFIXES, PROGRAM, Parts
from localdflash.errors import LocaldflashError
from localdflash.loading.load import LoadedPair
from localdflash.pairs.registry import load_registry
from localdflash.server.api.body import read
from localdflash.server.api.errors import ApiError, as_api_error
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import LoadRequest
from localdflash.server.api.state import AppState


async def health(http: HttpRequest) -> Response:
    """Report whether requests can be answered."""
    worker = http.app.state.shared.worker
    if worker.failed.is_set():
        return _unhealthy("the device is lost")
    if worker.loaded is not None:
        return json_response({"status": "ok"})
    if worker.error is not None:
        return _unhealthy("Loading failed: " + str(as_api_error(worker.error)))
    return _unhealthy("Loading model")


def _unhealthy(message: str) -> Response:
    """An error in llama-server's shape, whose clients look for its words."""
    error = {"message": message, "type": "unavailable_error", "param": None, "code": 503}
    return json_response({"status": message.lower(), "error": error}, 503)


async def models(http: HttpRequest) -> Response:
    """List the model that is loaded."""
    state: AppState = http.app.state.shared
    return json_response({"object": "list", "data": [_model(state, await state.ready())]})


async def model(http: HttpRequest) -> Response:
    """Describe the model that is loaded, by name."""
    state: AppState = http.app.state.shared
    return json_response(_model(state, await state.ready(http.path_params["model"])))


def _model(state: AppState, loaded: LoadedPair) -> dict[str, Any]:
    return {
        "id": loaded.files.id,
        "object": "model",
        "created": int(state.worker.loaded_at),
        "owned_by": "localdflash",
        "meta": {
            "n_ctx": loaded.context,
            "n_vocab": loaded.tokenizer.vocab_size,
            "backend": loaded.backend,
            "drafter": _has_drafter(loaded),
        },
    }


def _has_drafter(loaded: LoadedPair) -> bool:
    """Whether a model drafts, besides lookup."""
    return loaded.options.draft and (loaded.files.drafter_gguf or loaded.files.drafter_safetensors) is not None


async def props(http: HttpRequest) -> Response:
    """Report what llama-server tells of itself."""
    state: AppState = http.app.state.shared
    loaded = await state.ready()
    return json_response(
        {
            "default_generation_settings": {"n_ctx": loaded.context, "params": {}},
            "total_slots": 1,
            "model_alias": loaded.files.id,
            "model_path": loaded.files.target.name,
            "chat_template": loaded.tokenizer.chat_template() or "",
            **loaded.tokenizer.template_tokens(),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"localdflash {version('localdflash')}",
        }
    )


async def metrics(http: HttpRequest) -> Response:
    """Report metrics for Prometheus."""
    return Response(http.app.state.shared.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def ps(http: HttpRequest) -> Response:
    """Report what is loaded, how much memory it takes, and what it does."""
    state: AppState = http.app.state.shared
    worker, loaded, scheduler = state.worker, state.worker.loaded, state.worker.scheduler
    about: dict[str, Any] = _about(loaded) if loaded else {"pair": worker.options.pair}
    if scheduler and scheduler.prefixes and PROGRAM in about.get("memory", ()):
        about["memory"] = _with_prefixes(about["memory"], scheduler.prefixes.size)
    return json_response(
        {
            **about,
            "options": _options(worker.options),
            "since": round(worker.loaded_at, 3) if loaded else None,
            "requests": scheduler.totals.requests if scheduler else 0,
            "running": int(scheduler is not None and scheduler.running is not None),
            "waiting": scheduler.waiting if scheduler else 0,
            "idle_seconds": round(state.idle(), 3),
            "uptime_seconds": round(time.monotonic() - state.began, 3),
            "version": version("localdflash"),
            "pid": os.getpid(),
        }
    )


def _options(options: Options) -> dict[str, Any]:
    """The options of /load."""
    return {name: getattr(options, name) for name in LoadRequest.__struct_fields__}


def _with_prefixes(measured: Parts, held: int) -> Parts:
    """The prefix cache as a part of its own, which the program would have otherwise."""
    return {**measured, PROGRAM: max(measured[PROGRAM] - held, 0), PREFIXES: held}


def _about(loaded: LoadedPair) -> dict[str, Any]:
    return {
        "pair": loaded.files.id,
        "backend": loaded.backend,
        "context": loaded.context,
        "device": loaded.device,
        "drafter": _has_drafter(loaded),
        "memory": loaded.memory(),
        "predicted": loaded.predicted,
        "rows": loaded.rows,
        "notice": loaded.notice,
    }


async def load(http: HttpRequest) -> Response:
    """Load another pair; requests that are already there are answered first."""
    state: AppState = http.app.state.shared
    body = await read(http, LoadRequest)
    given = {name: value for name in body.__struct_fields__ if (value := getattr(body, name)) is not UNSET}
    async with state.loading:
        options = replace(state.worker.options, **given)
        await asyncio.to_thread(_check_pair, options.pair)
        with suppress(ApiError):
            await state.ready()  # a load that is under way is not interrupted
        try:
            await state.worker.swap(options)
        except LocaldflashError as error:
            told = as_api_error(error)
            raise ApiError(
                400 if told.status == 500 else told.status, str(told), code=told.code or "load_failed"
            ) from None
        loaded = await state.ready()
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
