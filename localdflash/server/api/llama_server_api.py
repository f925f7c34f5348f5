"""Serve llama-server's HTTP API, which llama.vim, llama.vscode and Continue use."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash import __version__
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.code.fim.prompt import Gap
from localdflash.engine.generate import Request
from localdflash.engine.scheduler import Scheduler
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import DEFAULT_TEMPERATURE
from localdflash.server.api.completion_request import INFILL_TEMPERATURE, prepare_infill, prepare_prompt, prompts_of
from localdflash.server.api.generation import (
    Choice,
    GenerationRequest,
    MakeConstraint,
    collect,
    constraint_of,
    limit_of,
    params_of,
    pieces,
    timings,
    with_choices,
)
from localdflash.server.api.http_responses import ApiError, EventStream, bad, json_of, json_response
from localdflash.server.api.schemas import DetokenizeRequest, InfillRequest, NativeRequest, RawRequest, TokenizeRequest
from localdflash.text.chat_template import encode_parts
from localdflash.text.grammar import Grammars
from localdflash.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 128  # default of n_predict


async def infill(http: HttpRequest, state: AppState, body: InfillRequest) -> Response:
    """Serve POST /infill: text at the cursor."""
    loaded = await state.ready("completion", body.model)
    generation = await state.prepare(
        loaded, _infill, loaded, state.infill_planner(loaded), body, state.grammars(loaded)
    )
    return await _answer(http, state, generation, body)


async def completion(http: HttpRequest, state: AppState, body: RawRequest) -> Response:
    """Serve POST /completion: continue one prompt."""
    loaded = await state.ready(state.engines.raw_prompt_role, body.model)
    generation = await state.prepare(loaded, _completion, loaded, body, state.grammars(loaded))
    return await _answer(http, state, generation, body)


def _infill(loaded: LoadedPair, planner: InfillPlanner, body: InfillRequest, grammars: Grammars) -> GenerationRequest:
    """Prepare an infill. With a grammar, only that ends the text. A grammar or `stop` turns off token healing."""
    constraint = constraint_of(body, grammars)
    extra = [(" ".join(one.filename.split()) or "file", one.text) for one in body.input_extra or ()]
    reads_files = bool(loaded.fim_format().file_tokens)  # else prompt-lookup drafts use `extra`, the last text first
    plan = planner.plan(
        Gap(path="", language="", prefix=body.input_prefix, middle=body.prompt or "", suffix=body.input_suffix),
        [ContextPiece("open", *one, weight=i) for i, one in enumerate(extra)] if reads_files else (),
        lookup_texts=() if reads_files else [text for _, text in reversed(extra)],
        max_tokens=limit_of(body.n_predict, default=DEFAULT_MAX_TOKENS),
        params=params_of(body, INFILL_TEMPERATURE),
        max_prompt_tokens=loaded.context,
        heals=not (constraint or body.stop),
    )
    generation = prepare_infill(loaded, plan)
    return _with_limits(replace(generation, ending=None) if constraint else generation, body, constraint)


def _completion(loaded: LoadedPair, body: RawRequest, grammars: Grammars) -> GenerationRequest:
    prompts = prompts_of(body.prompt)
    if len(prompts) > 1:
        raise bad("prompt", "expected one prompt")
    prepared = prepare_prompt(loaded, prompts[0], None, limit_of(body.n_predict, default=DEFAULT_MAX_TOKENS), body)
    return _with_limits(prepared, body, constraint_of(body, grammars))


def _with_limits(
    generation: GenerationRequest, body: NativeRequest, constraint: MakeConstraint | None
) -> GenerationRequest:
    generation = with_choices(generation, body, constraint=constraint)
    max_seconds = max(body.t_max_predict_ms or 0.0, 0.0) / 1e3
    return replace(generation, max_seconds=max_seconds, min_indent=body.n_indent or 0)


async def _answer(http: HttpRequest, state: AppState, generation: GenerationRequest, body: NativeRequest) -> Response:
    async def whole() -> dict[str, Any]:
        (choice,) = await collect(state, generation)
        tokens = choice.ids if body.return_tokens else []
        return _select_fields({**_final_fields(generation, choice, choice.text), "tokens": tokens}, body)

    return EventStream(_events(state, generation, body)) if body.stream else await json_of(http, whole())


async def _events(state: AppState, generation: GenerationRequest, body: NativeRequest) -> AsyncGenerator[Any]:
    async with aclosing(pieces(state, generation, progress=bool(body.return_progress))) as source:
        async for piece in source:
            request = piece.choice.request
            if piece.is_last:
                yield _select_fields(_final_fields(generation, piece.choice, ""), body)
            elif piece.text or piece.progress or (piece.step and body.return_tokens):
                yield {
                    "index": 0,
                    "content": piece.text,
                    "tokens": list(piece.step.tokens) if piece.step else [],
                    "stop": False,
                    "id_slot": 0,
                    "tokens_predicted": request.stats.tokens,
                    "tokens_evaluated": len(request.ids),
                    **({"timings": timings([request])} if body.timings_per_token else {}),
                    **({"prompt_progress": piece.progress} if piece.progress else {}),
                }


def _final_fields(generation: GenerationRequest, choice: Choice, content: str) -> dict[str, Any]:
    request, predicted = choice.request, choice.request.stats.tokens
    at_end = "eos" if choice.ids and choice.ids[-1] in request.ends else "limit"
    return {
        "index": 0,
        "content": content,
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": generation.loaded.files.id,
        "tokens_predicted": predicted,
        "tokens_evaluated": len(request.ids),
        "generation_settings": {**_settings(request), "stop": list(generation.stops)},
        "has_new_line": "\n" in choice.text,
        "truncated": generation.truncated,
        "stop_type": {"stop": "word" if choice.stop_string else at_end, "length": "limit"}.get(choice.finish, "none"),
        "stopping_word": choice.stop_string,
        "tokens_cached": len(request.ids) + predicted,
        "timings": timings([request]),
    }


def _settings(request: Request) -> dict[str, Any]:
    """Return the sampling parameters and limit of a request under llama-server's names."""
    params = request.params
    return {
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
    }


def _select_fields(whole: dict[str, Any], body: NativeRequest) -> dict[str, Any]:
    """Return the fields that `response_fields` lists, else all; "timings/prompt_n" selects a nested field."""
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


async def tokenize(http: HttpRequest, state: AppState, body: TokenizeRequest) -> Response:
    """Serve POST /tokenize."""
    tokenizer = (await state.ready(state.engines.main_role)).tokenizer
    ids = await asyncio.to_thread(_encode_content, tokenizer, body)
    tokens = [{"id": token, "piece": _piece(tokenizer, token)} for token in ids] if body.with_pieces else ids
    return json_response({"tokens": tokens})


async def detokenize(http: HttpRequest, state: AppState, body: DetokenizeRequest) -> Response:
    """Serve POST /detokenize."""
    tokenizer = (await state.ready(state.engines.main_role)).tokenizer
    if invalid := [token for token in body.tokens if token >= tokenizer.vocab_size]:
        raise bad("tokens", f"invalid token id {invalid[0]} (expected 0 to {tokenizer.vocab_size - 1})")
    data = b"".join(tokenizer.piece(token, special=True) for token in body.tokens)
    return json_response({"content": data.decode("utf-8", "replace")})


def _encode_content(tokenizer: Tokenizer, body: TokenizeRequest) -> list[int]:
    parts = tokenizer.split_markers(body.content) if body.parse_special else [body.content]
    ids = encode_parts(tokenizer, parts)
    bos = tokenizer.bos()
    return [bos, *ids] if body.add_special and bos is not None else ids


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """Return a token as text, or as a list of bytes if it is not valid UTF-8."""
    data = tokenizer.piece(token, special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


async def props(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /props: properties of the pair of `?model=` (default: the main role's)."""
    loaded = await state.ready(state.engines.main_role, http.query_params.get("model"))
    return json_response(
        {
            "default_generation_settings": {
                "n_ctx": loaded.context,
                "params": _settings(Request([], DEFAULT_MAX_TOKENS, params_of(NativeRequest(), DEFAULT_TEMPERATURE))),
            },
            "total_slots": sum(worker.loaded is not None for worker in state.engines.workers),
            "model_alias": loaded.files.id,
            "model_path": loaded.files.target.name,
            "chat_template": loaded.tokenizer.chat_template() or "",
            **loaded.tokenizer.template_tokens(),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"localdflash {__version__}",
        }
    )


async def slots(http: HttpRequest, state: AppState) -> Response:
    """Serve GET /slots: a slot for each loaded pair. With `?fail_on_no_slot=1`, error 503 if all pairs are busy."""
    workers = enumerate(state.engines.workers)
    entries = [_slot(number, loaded, worker.scheduler) for number, worker in workers if (loaded := worker.loaded)]
    if http.query_params.get("fail_on_no_slot") and all(slot["is_processing"] for slot in entries):
        raise ApiError(503, "no slot available", code="queue_full", Retry_After="1")
    return json_response(entries)


async def change_slot(http: HttpRequest, state: AppState) -> Response:
    """Raise ApiError 501 for POST /slots/N?action=save, restore or erase."""
    message = "slots cannot be saved, restored or erased; KV caches of earlier prompts are reused automatically"
    raise ApiError(501, message, code="not_offered")


def _slot(number: int, loaded: LoadedPair, scheduler: Scheduler | None) -> dict[str, Any]:
    running = scheduler.running if scheduler else None
    slot = {
        "id": number,
        "model": loaded.files.id,
        "n_ctx": loaded.context,
        "speculative": bool(loaded.drafters),
        "is_processing": running is not None,
    }
    if not running:
        return slot
    request, done = running.request, running.request.stats.tokens
    next_token = {"has_next_token": not request.finish_reason, "n_decoded": done, "n_remain": request.max_tokens - done}
    return {**slot, "n_prompt_tokens": len(request.ids), "params": _settings(request), "next_token": [next_token]}
