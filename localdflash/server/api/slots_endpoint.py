"""llama-server's GET /slots: one for each pair that is loaded, and what it works at. No prompt is shown."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.engine.generate import Request
from localdflash.server.api.api_state import AppState
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.responses import json_response
from localdflash.server.worker import PairWorker


async def slots(http: HttpRequest) -> Response:
    """The slots; with `?fail_on_no_slot=1` a 503 while none of them is free."""
    state: AppState = http.app.state.shared
    told = [_slot(number, worker) for number, worker in enumerate(state.engines.workers) if worker.loaded]
    if http.query_params.get("fail_on_no_slot") and all(slot["is_processing"] for slot in told):
        raise ApiError(503, "no slot available", code="queue_full", Retry_After="1")
    return json_response(told)


def _slot(number: int, worker: PairWorker) -> dict[str, Any]:
    loaded, running = worker.loaded, worker.scheduler.running if worker.scheduler else None
    about = {
        "id": number,
        "model": loaded.files.id if loaded else "",
        "n_ctx": loaded.context if loaded else 0,
        "speculative": bool(loaded and loaded.drafters),
        "is_processing": running is not None,
    }
    return {**about, **(_task(running.request) if running else {})}


def _task(request: Request) -> Mapping[str, Any]:
    params, said = request.params, request.stats.tokens
    next_token = {"has_next_token": not request.finish, "n_decoded": said, "n_remain": request.max_tokens - said}
    return {
        "n_prompt_tokens": len(request.ids),
        "params": {
            "n_predict": request.max_tokens,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "seed": params.seed,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "repeat_penalty": params.repetition_penalty,
        },
        "next_token": [next_token],
    }
