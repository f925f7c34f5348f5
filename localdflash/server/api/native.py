"""llama-server's POST /infill and /completion, which llama.vim, llama.vscode and Continue speak."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.code.fim.filler import Filler
from localdflash.code.fim.prompt import FillContext, Hole
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.completion import prepare_filling
from localdflash.server.api.answers import Choice, collect, pieces, timings
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask, choices, constraint_of, limit_of, params_of
from localdflash.server.api.completions import MIDDLE_TEMPERATURE, prepare_prompt, prompts_of
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.request_body import read
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import InfillRequest, NativeRequest, RawRequest
from localdflash.server.api.streams import GONE, Disconnected, EventStream, event, until_disconnect
from localdflash.text.grammar import Grammars

TOKENS = 128  # where a request does not say


async def infill(http: HttpRequest) -> Response:
    """Answer with the text at a cursor, up to the end of the line, statement or block."""
    state: AppState = http.app.state.shared
    body = await read(http, InfillRequest)
    loaded = await state.ready("completion", body.model)
    ask = await asyncio.to_thread(_infill, loaded, state.filler(loaded), body, state.grammars(loaded))
    return await _answer(http, state, ask, body)


async def completion(http: HttpRequest) -> Response:
    """Answer with what follows a prompt."""
    state: AppState = http.app.state.shared
    body = await read(http, RawRequest)
    loaded = await state.ready(state.engines.continuing, body.model)
    ask = await asyncio.to_thread(_completion, loaded, body, state.grammars(loaded))
    return await _answer(http, state, ask, body)


def _infill(loaded: LoadedPair, filler: Filler, body: InfillRequest, grammars: Grammars) -> Ask:
    """An infill made by `code/fim`. A grammar alone decides where it ends; with one, or stop strings, nothing
    heals.
    """
    constraint = constraint_of(body, grammars)
    extra = [(_one_line(one.filename), one.text) for one in body.input_extra or ()]
    has_place = bool(loaded.fim_format().files)  # else drafts are copied from them; the last matter most
    filling = filler.fill(
        Hole("", "", body.input_prefix, body.prompt or "", body.input_suffix),
        [FillContext("open", *one, weight=i) for i, one in enumerate(extra)] if has_place else (),
        () if has_place else [text for _, text in reversed(extra)],
        max_tokens=limit_of(body.n_predict, default=TOKENS),
        params=params_of(body, MIDDLE_TEMPERATURE),
        most=loaded.context,
        heals=not (constraint or body.stop),
    )
    requests, stops = choices(loaded, prepare_filling(filling), body, constraint=constraint)
    ending = None if constraint else filling.ending
    return _with_limits(Ask(loaded, requests, stops, filling.prompt.truncated, ending=ending), body)


def _completion(loaded: LoadedPair, body: RawRequest, grammars: Grammars) -> Ask:
    prompts = prompts_of(body.prompt)
    if len(prompts) > 1:
        raise ApiError(400, "prompt: only one", param="prompt", code="invalid_value")
    prepared = prepare_prompt(loaded, prompts[0], None, limit_of(body.n_predict, default=TOKENS), body)
    requests, stops = choices(loaded, prepared, body, constraint=constraint_of(body, grammars))
    return _with_limits(Ask(loaded, requests, stops), body)


def _with_limits(ask: Ask, body: NativeRequest) -> Ask:
    seconds = max(body.t_max_predict_ms or 0.0, 0.0) / 1e3
    return replace(ask, urgent=True, document=body.document, seconds=seconds, least_indent=body.n_indent or 0)


def _one_line(name: str) -> str:
    return " ".join(name.split()) or "file"


async def _answer(http: HttpRequest, state: AppState, ask: Ask, body: NativeRequest) -> Response:
    if body.stream:
        return EventStream(_events(state, ask, body))
    try:
        found = await until_disconnect(http.receive, collect(state, ask))
    except Disconnected:
        return Response(status_code=GONE)
    return json_response(_selected(_whole(ask, found[0], found[0].text), body))


async def _events(state: AppState, ask: Ask, body: NativeRequest) -> AsyncGenerator[bytes]:
    async with aclosing(pieces(state, ask)) as source:
        async for piece in source:
            request = piece.choice.request
            if piece.choice.finish and not piece.text:
                yield event(_selected(_whole(ask, piece.choice, ""), body))
            elif piece.text:
                yield event(
                    {
                        "index": 0,
                        "content": piece.text,
                        "tokens": list(piece.step.tokens) if piece.step else [],
                        "stop": False,
                        "id_slot": 0,
                        "tokens_predicted": request.stats.tokens,
                        "tokens_evaluated": len(request.ids),
                    }
                )


def _whole(ask: Ask, choice: Choice, content: str) -> dict[str, Any]:
    request = choice.request
    params, predicted = request.params, request.stats.tokens
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": ask.loaded.files.id,
        "tokens_predicted": predicted,
        "tokens_evaluated": len(request.ids),
        "generation_settings": {
            "seed": params.seed,
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.top_p,
            "min_p": params.min_p,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": params.penalty_window,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
            "logit_bias": params.logit_bias,
            "n_predict": request.max_tokens,
            "stop": list(ask.stops),
        },
        "has_new_line": "\n" in choice.text,
        "truncated": ask.truncated,
        "stop_type": _stop_type(choice),
        "stopping_word": choice.stop_string,
        "tokens_cached": len(request.ids) + predicted,
        "timings": timings([request]),
    }


def _stop_type(choice: Choice) -> str:
    match choice.finish:
        case "stop":
            ended = choice.ids and choice.ids[-1] in choice.request.ends
            return "word" if choice.stop_string else "eos" if ended else "limit"
        case "length":
            return "limit"
    return "none"


def _selected(whole: dict[str, Any], body: NativeRequest) -> dict[str, Any]:
    """Only the fields that the request names, if it does; "timings/prompt_n" is a field inside of another."""
    if not body.response_fields:
        return whole
    selected = {}
    for path in body.response_fields:
        value: Any = whole
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            selected[path] = value
    return selected
