"""Anthropic's POST /v1/messages and /v1/messages/count_tokens: translated to a chat request, and its answer back.

Text blocks of a user's message, and of the system's, are paragraphs: a blank line is put between them. Those of an
answer are one text that calls have cut. Without `thinking` a model does not think, if its template can tell it so.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.api.anthropic_body import (
    CountRequest,
    DocumentBlock,
    ImageBlock,
    MessageBlock,
    MessageParam,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import (
    check_schema,
    clamp_effort,
    messages_of,
    named_tool,
    prepare_chat,
    render_chat,
    tools_of,
    variables_of,
)
from localdflash.server.api.content_blocks import AnswerBlock, AnswerBlocks, BlockEvent
from localdflash.server.api.generation import GenerationRequest, cached_tokens
from localdflash.server.api.http_errors import MESSAGES, bad, error_body
from localdflash.server.api.http_responses import EventStream, json_of, json_response, named_event, named_events
from localdflash.server.api.request_body import read
from localdflash.server.api.schemas import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    JsonSchema,
    NamedTool,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolFunction,
)

BETWEEN = "\n\n"  # paragraphs
INVALID = "INVALID_JSON"  # where Anthropic has a client put arguments that are no JSON of an object
SIGNATURE = ""  # of thoughts: nobody but this machine has made them


async def messages(http: HttpRequest) -> Response:
    """Answer a conversation."""
    state: AppState = http.app.state.shared
    body = await read(http, MessagesRequest)
    generation, make_parts = await prepare_chat(state, chat_request(body))
    blocks, stops = AnswerBlocks(make_parts()), body.stop_sequences or ()
    if body.stream:
        failure = lambda error: named_event(error_body(error, MESSAGES))  # noqa: E731
        return EventStream(named_events(_events(state, generation, blocks, stops)), failure)
    return await json_of(http, _message(state, generation, blocks, stops))


async def count_tokens(http: HttpRequest) -> Response:
    """Tell how many tokens the prompt of a conversation has, whether or not it fits."""
    state: AppState = http.app.state.shared
    body = await read(http, CountRequest)
    loaded = await state.ready("chat", body.model)
    asked = chat_request(body)
    render = partial(
        render_chat,
        loaded,
        messages_of(asked.messages),
        variables=variables_of(asked),
        goes_on=bool(asked.continue_final_message),
        tools=tools_of(asked).described,
    )
    return json_response({"input_tokens": len(await asyncio.to_thread(lambda: render().encode()))})


def chat_request(body: CountRequest) -> ChatRequest:
    """Translate the request to one of the chat API; raise ApiError for a wrong field."""
    tools = [_tool(f"tools[{number}]", tool) for number, tool in enumerate(body.tools or ())]
    choice = body.tool_choice or ToolChoice("auto")
    config = body.output_config
    request = ChatRequest(
        model=body.model,
        messages=_messages(body),
        tools=tools,
        tool_choice=_choice(choice, tools),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=clamp_effort(config.effort) if config else None,
        chat_template_kwargs={"enable_thinking": body.thinking is not None and body.thinking.type != "disabled"},
        continue_final_message=body.messages[-1].role == "assistant",
    )
    if config and config.format:
        request.response_format = ResponseFormat("json_schema", JsonSchema(config.format.schema))
    if isinstance(body, MessagesRequest):
        request.max_tokens, request.stop = body.max_tokens, body.stop_sequences
        request.temperature, request.top_p, request.top_k = body.temperature, body.top_p, body.top_k
        request.seed, request.draft = body.seed, body.draft
    return request


def _messages(body: CountRequest) -> list[ChatMessage]:
    system = _paragraphs("system", body.system or "")
    told = [ChatMessage("system", system)] if system else []
    for number, message in enumerate(body.messages):
        place = f"messages[{number}].content"
        told += [_answer(place, message)] if message.role == "assistant" else _said(place, message.content)
    if body.messages[-1].role == "assistant" and told[-1].tool_calls:
        raise bad(f"messages[{len(body.messages) - 1}]", "the results of its tool_use blocks must follow")
    return told


def _answer(place: str, message: MessageParam) -> ChatMessage:
    text, thoughts, calls = "", "", list[ToolCall]()
    for number, block in enumerate(_blocks(message.content)):
        match block:
            case TextBlock():
                text += block.text
            case ThinkingBlock():
                thoughts += block.thinking
            case ToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(ToolCall(CalledFunction(block.name, arguments), block.id))
            case ImageBlock() | DocumentBlock() | ToolResultBlock():
                raise bad(f"{place}[{number}]", "an answer has text, thinking and tool_use blocks only")
    return ChatMessage("assistant", text, thoughts, calls or None)


def _said(place: str, content: str | list[MessageBlock]) -> Iterator[ChatMessage]:
    """Yield a user's message: the results of calls, and the text before and after them."""
    text = list[str]()
    for number, block in enumerate(_blocks(content)):
        here = f"{place}[{number}]"
        match block:
            case TextBlock():
                text.append(block.text)
            case ToolResultBlock():
                if text:
                    yield ChatMessage("user", BETWEEN.join(text))
                    text = []
                result = _paragraphs(f"{here}.content", block.content or "")
                yield ChatMessage("tool", result or ("error" if block.is_error else ""), tool_call_id=block.tool_use_id)
            case ImageBlock() | DocumentBlock():
                raise _unreadable(here)
            case _:
                raise bad(here, "a user's message has text and tool_result blocks only")
    if text or not content:
        yield ChatMessage("user", BETWEEN.join(text))


def _blocks(content: str | list[MessageBlock]) -> Sequence[MessageBlock]:
    return [TextBlock(content)] if isinstance(content, str) else content


def _paragraphs(place: str, content: str | Sequence[TextBlock | ImageBlock | DocumentBlock]) -> str:
    if isinstance(content, str):
        return content
    paragraphs = list[str]()
    for number, block in enumerate(content):
        if not isinstance(block, TextBlock):
            raise _unreadable(f"{place}[{number}]")
        paragraphs.append(block.text)
    return BETWEEN.join(paragraphs)


def _unreadable(place: str) -> Exception:
    return bad(place, "pictures and documents are not supported, only text")


def _tool(place: str, tool: ToolDefinition) -> Tool:
    if tool.type not in (None, "custom"):
        raise bad(f"{place}.type", f"{tool.type!r} is not supported: only tools with a schema of their own are")
    if tool.input_schema is None:
        raise bad(f"{place}.input_schema", "missing")
    check_schema(f"{place}.input_schema", tool.input_schema)
    return Tool("function", ToolFunction(tool.name, tool.description, tool.input_schema))


def _choice(choice: ToolChoice, tools: Sequence[Tool]) -> Literal["none", "auto", "required"] | NamedTool:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            return named_tool(choice.name or "", tools)
        case known:
            return known


async def _message(
    state: AppState, generation: GenerationRequest, answer: AnswerBlocks, stops: Sequence[str]
) -> dict[str, Any]:
    """Return the whole message; `stops` are the stop sequences that the request has asked for."""
    async with aclosing(answer.run(state, generation)) as steps:
        async for _ in steps:
            pass
    content = [*map(_content, answer.blocks)]
    return {**_head(generation), "content": content, **_end(answer, stops), "usage": _usage(generation)}


async def _events(
    state: AppState, generation: GenerationRequest, answer: AnswerBlocks, stops: Sequence[str]
) -> AsyncGenerator[dict[str, Any]]:
    """Yield the events of the message; the first one comes with the first token."""
    begun = False
    async with aclosing(answer.run(state, generation)) as steps:
        async for changes in steps:
            if not begun:
                begun = True
                start = {**_head(generation), "content": [], "stop_reason": None, "stop_sequence": None}
                yield {
                    "type": "message_start",
                    "message": {**start, "usage": _usage(generation) | {"output_tokens": 0}},
                }
            for change in changes:
                for event in _of_block(change):
                    yield event
    yield {"type": "message_delta", "delta": _end(answer, stops), "usage": _usage(generation)}
    yield {"type": "message_stop"}


def _head(generation: GenerationRequest) -> dict[str, Any]:
    identity = f"msg_{uuid.uuid4().hex[:24]}"
    return {"id": identity, "type": "message", "role": "assistant", "model": generation.loaded.files.id}


def _of_block(event: BlockEvent) -> list[dict[str, Any]]:
    index, empty = event.block.number, replace(event.block, text="")
    match event.what:
        case "begin":
            return [{"type": "content_block_start", "index": index, "content_block": _content(empty)}]
        case "more":
            return [{"type": "content_block_delta", "index": index, "delta": _delta(event)}]
    signed: list[dict[str, Any]] = []
    if event.block.kind == "thoughts":
        delta = {"type": "signature_delta", "signature": SIGNATURE}
        signed = [{"type": "content_block_delta", "index": index, "delta": delta}]
    return [*signed, {"type": "content_block_stop", "index": index}]


def _delta(event: BlockEvent) -> dict[str, Any]:
    match event.block.kind:
        case "thoughts":
            return {"type": "thinking_delta", "thinking": event.text}
        case "text":
            return {"type": "text_delta", "text": event.text}
    return {"type": "input_json_delta", "partial_json": event.text}


def _content(block: AnswerBlock) -> dict[str, Any]:
    """Return a block with its text so far."""
    match block.kind:
        case "thoughts":
            return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
        case "text":
            return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": _arguments(block.text)}


def _arguments(text: str) -> dict[str, Any]:
    """Arguments as an object: what a model has cut or misspelled is passed on as it is."""
    try:
        return dict(msgspec.json.decode(text or "{}", type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return {INVALID: text}


def _end(answer: AnswerBlocks, stops: Sequence[str]) -> dict[str, Any]:
    choice = answer.choice
    stop = choice.stop_string if choice.stop_string in stops else None
    reason = "stop_sequence" if stop else "tool_use" if answer.calls_tools else "end_turn"
    return {"stop_reason": "max_tokens" if choice.finish == "length" else reason, "stop_sequence": stop}


def _usage(generation: GenerationRequest) -> dict[str, Any]:
    """Tokens; those of the prompt that a cache held are counted apart."""
    (request,) = generation.requests
    cached = cached_tokens(request)
    return {
        "input_tokens": len(request.ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": request.stats.tokens,
    }
