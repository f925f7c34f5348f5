"""Serve POST /next_edit: changes near the cursor, predicted by a model that was trained for it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.base.errors import ModelError
from localdflash.code.context.context import ContextPiece
from localdflash.code.next_edit.prediction import EditPrompt, plan_prediction
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.generation import GenerationRequest, collect, timings
from localdflash.server.api.http_responses import EventStream, json_of
from localdflash.server.api.schemas import NextEditRequest

Event = dict[str, Any]


async def next_edit(http: HttpRequest, state: AppState, body: NextEditRequest) -> Response:
    """Serve POST /next_edit: one event, or one JSON object, with the changes."""
    loaded = await state.ready("completion", body.model)
    prompt = await asyncio.to_thread(_plan, loaded, body)
    answer = _answer(state, loaded, prompt, body.document or None)
    return EventStream(_single(answer)) if body.stream else await json_of(http, answer)


def _plan(loaded: LoadedPair, body: NextEditRequest) -> EditPrompt | None:
    form = loaded.edit_format()
    if form is None:
        raise ModelError(f"{loaded.files.id} does not predict edits; see docs/models.md for models that do")
    pieces = [ContextPiece(one.kind, " ".join(one.name.split()), one.text, one.weight) for one in body.context]
    before, after = (text.replace("\r\n", "\n") for text in (body.prefix, body.suffix))
    path = " ".join(body.path.split())
    prompt = plan_prediction(form, loaded.tokenizer, loaded.context, path, before, after, pieces)
    if prompt:
        prompt.request.draft = body.draft is not False
    return prompt


async def _answer(state: AppState, loaded: LoadedPair, prompt: EditPrompt | None, document: str | None) -> Event:
    if prompt is None:
        return {"index": 0, "text": "", "changes": [], "finish": "refused", "model": loaded.files.id}
    form, request = prompt.form, prompt.request
    stops = (form.answer_end,) if form.answer_end else ()
    generation = GenerationRequest(loaded, [request], stops, urgent=True, document=document)
    (choice,) = await collect(state, generation)
    ended = choice.finish == "stop" and (not stops or choice.stop_string or loaded.tokenizer.has_special(stops[0]))
    changes = prompt.changes(choice.text) if ended else None
    return {
        "index": 0,
        "text": choice.text,
        "changes": [{"start": one.start, "end": one.end, "lines": one.lines} for one in changes or ()],
        "finish": choice.finish if changes is not None or choice.finish != "stop" else "malformed",
        "model": loaded.files.id,
        "tokens": request.stats.tokens,
        "tau": round(request.stats.tau, 3),
        "timings": timings([request]),
    }


async def _single(answer: Any) -> AsyncGenerator[Event]:
    yield await answer
