"""POST /v1/chat/completions and /apply-template."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.conversation import prepare, prompt_ids, prompt_text
from localdflash.server.answers.repetition import Repetition
from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import ALL_THE_ROOM, Ask, MakeConstraint, choices, constraint_of, limit_of, params_of
from localdflash.server.api.chat_messages import bad, messages_of, text_of
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.openai_answers import ChatShape, answer
from localdflash.server.api.request_body import read
from localdflash.server.api.responses import json_response
from localdflash.server.api.schemas import ChatRequest, TemplateRequest
from localdflash.server.api.tools import AskedTools, described, tools_of
from localdflash.text.chat_template import TemplateMessage
from localdflash.text.grammar import Grammars
from localdflash.text.thoughts import ThoughtSplit, split

TEMPERATURE = 1.0  # where a request does not say, as OpenAI documents


async def chat(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, ChatRequest)
    loaded = await state.ready("chat", body.model)
    tools = tools_of(body)
    ask = await asyncio.to_thread(ask_of, loaded, body, tools, state.grammars(loaded))
    return await answer(
        http, state, ask, body, ChatShape(loaded.tokenizer, bool(body.logprobs), parts_of(ask, body, tools))
    )


def parts_of(ask: Ask, body: ChatRequest, tools: AskedTools) -> Callable[[], AnswerParts]:
    """What takes the text of a choice apart; thoughts stay in it where the request wants one text."""
    apart = body.reasoning_format != "none"
    begun = messages_of(body.messages)[-1].content if body.continue_final_message else ""
    thinking = split(begun)[2]
    return lambda: AnswerParts(
        ThoughtSplit(thinking=thinking, begun=bool(begun)) if apart else None, tools.reader(ask.loaded.tokenizer)
    )


async def apply_template(http: HttpRequest) -> Response:
    """Return the prompt that a conversation makes, as text, or its number of tokens."""
    state: AppState = http.app.state.shared
    body = await read(http, TemplateRequest)
    loaded = await state.ready("chat", body.model)
    messages = messages_of(body.messages)
    goes_on = _goes_on(body.continue_final_message, messages)
    made = partial(
        prompt_ids if body.count else prompt_text,
        loaded,
        messages,
        variables=body.chat_template_kwargs,
        goes_on=goes_on,
        tools=described(body.tools or ()),
    )
    prompt = await asyncio.to_thread(made)
    return json_response({"prompt": prompt} if isinstance(prompt, str) else {"tokens": len(prompt)})


def _goes_on(asked: bool | None, messages: Sequence[TemplateMessage]) -> bool:
    """Whether the last message is an answer to continue."""
    if asked and messages[-1].role != "assistant":
        raise bad("continue_final_message", "the last message is not from the assistant")
    return bool(asked)


def ask_of(loaded: LoadedPair, body: ChatRequest, tools: AskedTools, grammars: Grammars) -> Ask:
    """What a conversation asks to generate; ApiError names the field that is wrong."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs", code="invalid_value")
    limit = limit_of(body.max_completion_tokens, body.max_tokens, body.n_predict, default=ALL_THE_ROOM)
    messages, params = messages_of(body.messages), params_of(body, TEMPERATURE)
    goes_on = _goes_on(body.continue_final_message, messages)
    calls = tools.constraint(loaded.tokenizer, grammars)
    formats = constraint_of(body, grammars, *_formats(body, grammars))
    if tools.schemas and formats:
        raise bad("tools", "not together with a form of the answer")
    prepared = prepare(
        loaded,
        messages,
        limit,
        params,
        variables=variables_of(body),
        goes_on=goes_on,
        at_once="call" if tools.must else "text" if formats else "",
        tools=tools.described,
    )
    prepared = replace(prepared, stops=tools.stops(loaded.tokenizer))
    if body.prediction:
        text = text_of(body.prediction.content, "prediction.content")
        prepared = replace(prepared, request=replace(prepared.request, documents=[loaded.tokenizer.encode(text)]))
    alternatives = (body.top_logprobs or 0) if body.logprobs else None
    requests, stops = choices(loaded, prepared, body, body.n or 1, calls or formats, alternatives, param="messages")
    ending = Repetition if body.end_repeats else None
    return Ask(loaded, requests, stops, document=body.document, ending=ending, makes_text=prepared.spelling)


def variables_of(body: ChatRequest) -> dict[str, str | bool]:
    """The template's switches, OpenAI's effort among them."""
    match body.reasoning_effort:
        case None:
            effort: dict[str, str | bool] = {}
        case "none":
            effort = {"enable_thinking": False}
        case "minimal":
            effort = {"reasoning_effort": "low"}
        case known:
            effort = {"reasoning_effort": known}
    return effort | (body.chat_template_kwargs or {})


def _formats(body: ChatRequest, grammars: Grammars) -> list[tuple[str, MakeConstraint]]:
    """The constraint that `response_format` asks for, if any."""
    given = body.response_format
    if given is None or given.type == "text":
        return []
    schema = given.json_schema.schema if given.json_schema else given.schema
    if schema is not None:
        known = schema
        return [("response_format", lambda: grammars.json_schema(known))]
    if given.type == "json_schema":
        raise bad("response_format.json_schema.schema", "missing")
    return [("response_format", grammars.json_object)]
