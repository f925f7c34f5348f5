"""Serve Anthropic's POST /v1/messages and /v1/messages/count_tokens by means of chat requests."""

import re
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.server.api import agent_bodies as bodies
from localdflash.server.api import schemas
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import count_prompt, prepare_chat
from localdflash.server.api.content_blocks import AnswerBlock, AnswerBlocks, BlockEvent
from localdflash.server.api.generation import GenerationRequest
from localdflash.server.api.http_responses import (
    MESSAGES_PATH,
    EventStream,
    bad,
    error_body,
    json_of,
    json_response,
    named_event,
    with_warning,
)

ONLY_TEXT = "not supported (expected text, or a document with a source of type text)"
# Claude Code's system prompt starts with this header. Its values change with every request, so no prefix is cached.
BILLING_HEADER = re.compile(r"\Ax-anthropic-billing-header:(?: *[\w-]+=[^;\n]*;)*\s*")
BLOCK_SEPARATOR = "\n\n"
INVALID_JSON_KEY = "INVALID_JSON"  # Anthropic's key for call arguments that are not a JSON object
SIGNATURE = ""  # thinking blocks must have this field; it is not checked here


async def messages(http: HttpRequest, state: AppState, body: bodies.MessagesRequest) -> Response:
    """Serve POST /v1/messages. Anthropic's own tools are left out of the prompt; a Warning header lists them."""
    generation, make_parts = await prepare_chat(state, chat_request(body))
    args = state, generation, AnswerBlocks(make_parts()), body.stop_sequences or ()
    if body.stream:
        response: Response = EventStream(
            _events(*args), named_event, lambda error: error_body(error, MESSAGES_PATH), named_event({"type": "ping"})
        )
    else:
        response = await json_of(http, _message(*args))
    return with_warning(response, [tool.name for tool in body.tools or () if not _is_custom(tool)])


async def count_tokens(http: HttpRequest, state: AppState, body: bodies.CountRequest) -> Response:
    """Serve POST /v1/messages/count_tokens."""
    return json_response({"input_tokens": await count_prompt(state, chat_request(body))})


def chat_request(body: bodies.CountRequest) -> schemas.ChatRequest:
    """Translate the request to a chat request; ApiError names an invalid field."""
    choice, config = body.tool_choice or bodies.ToolChoice("auto"), body.output_config or bodies.OutputConfig()
    if config.format and config.format.schema is None:
        raise bad("output_config.format.schema", "missing")
    request = schemas.ChatRequest(
        **body.shared(),
        messages=_messages(body),
        tools=[_as_tool(f"tools[{number}]", tool) for number, tool in enumerate(body.tools or ()) if _is_custom(tool)],
        tool_choice=_tool_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=config.effort,
        response_format=config.format,
        chat_template_kwargs={"enable_thinking": body.thinking is not None and body.thinking.type != "disabled"},
        continue_final_message=body.messages[-1].role == "assistant",
    )
    if isinstance(body, bodies.MessagesRequest):
        request.max_tokens, request.stop = body.max_tokens, body.stop_sequences
    return request


def _messages(body: bodies.CountRequest) -> list[schemas.ChatMessage]:
    system = _system_text("system", body.system or "")
    messages = [schemas.ChatMessage("system", system)] if system else []
    for number, message in enumerate(body.messages):
        param = f"messages[{number}].content"
        match message.role:
            case "assistant":
                messages.append(_assistant_message(param, message))
            case "system":
                messages.append(schemas.ChatMessage("system", _system_text(param, message.content)))
            case "user":
                messages += _user_messages(param, message.content)
    if body.messages[-1].role == "assistant" and messages[-1].tool_calls:
        raise bad(f"messages[{len(body.messages) - 1}]", "add the results of its tool_use blocks")
    return messages


def _assistant_message(param: str, message: bodies.MessageParam) -> schemas.ChatMessage:
    """Convert an earlier answer; redacted thinking is left out."""
    text, thoughts, calls = "", "", list[schemas.ToolCall]()
    for number, block in enumerate(_as_blocks(message.content)):
        match block:
            case bodies.TextBlock():
                text += block.text
            case bodies.ThinkingBlock():
                thoughts += block.thinking
            case bodies.ToolUseBlock():
                arguments = msgspec.json.encode(block.input).decode()
                calls.append(schemas.ToolCall(schemas.CalledFunction(block.name, arguments), block.id))
            case bodies.ImageBlock() | bodies.DocumentBlock() | bodies.ToolResultBlock():
                raise bad(f"{param}[{number}]", "an answer has text, thinking and tool_use blocks only")
    return schemas.ChatMessage("assistant", text, thoughts, calls or None)


def _user_messages(param: str, content: str | list[bodies.MessageBlock]) -> Iterator[schemas.ChatMessage]:
    """Convert a user message to chat messages: one for each tool result, and one for the text between two of them."""
    text = list[str]()
    for number, block in enumerate(_as_blocks(content)):
        block_param = f"{param}[{number}]"
        match block:
            case bodies.TextBlock():
                text.append(block.text)
            case bodies.ToolResultBlock():
                if text:
                    yield schemas.ChatMessage("user", BLOCK_SEPARATOR.join(text))
                    text = []
                result = _join_text(f"{block_param}.content", block.content or "")
                yield schemas.ChatMessage(
                    "tool", result or ("error" if block.is_error else ""), tool_call_id=block.tool_use_id
                )
            case bodies.ImageBlock() | bodies.DocumentBlock():
                text.append(_join_text(param, [block], number))
            case _:
                raise bad(block_param, "a user's message has text, document and tool_result blocks only")
    if text or not content:
        yield schemas.ChatMessage("user", BLOCK_SEPARATOR.join(text))


def _as_blocks(content: str | list[bodies.MessageBlock]) -> Sequence[bodies.MessageBlock]:
    return [bodies.TextBlock(content)] if isinstance(content, str) else content


def _system_text(param: str, content: str | Sequence[bodies.MessageBlock]) -> str:
    return BILLING_HEADER.sub("", _join_text(param, content))


def _join_text(param: str, content: str | Sequence[bodies.MessageBlock], first: int = 0) -> str:
    """Join the text of blocks; ApiError for a block without text. `first`: number of the first block."""
    if isinstance(content, str):
        return content
    paragraphs = list[str]()
    for number, block in enumerate(content, first):
        match block:
            case bodies.TextBlock():
                paragraphs.append(block.text)
            case bodies.DocumentBlock(bodies.DocumentSource("text"), title):
                paragraphs += [*([title] if title else []), block.source.data]
            case _:
                raise bad(f"{param}[{number}]", ONLY_TEXT)
    return BLOCK_SEPARATOR.join(filter(None, paragraphs))


def _is_custom(tool: bodies.ToolDefinition) -> bool:
    """Return whether the client defines the tool itself; Anthropic's own tools, such as web_search, have no schema."""
    return tool.type in (None, "custom")


def _as_tool(param: str, tool: bodies.ToolDefinition) -> schemas.Tool:
    if tool.input_schema is None:
        raise bad(f"{param}.input_schema", "missing")
    return schemas.Tool("function", schemas.ToolFunction(tool.name, tool.description, tool.input_schema))


def _tool_choice(choice: bodies.ToolChoice) -> Literal["none", "auto", "required"] | schemas.NamedTool:
    match choice.type:
        case "any":
            return "required"
        case "tool":
            return schemas.NamedTool(schemas.CalledFunction(choice.name or ""))
        case known:
            return known


async def _message(
    state: AppState, generation: GenerationRequest, answer: AnswerBlocks, stops: Sequence[str]
) -> dict[str, Any]:
    """Run the generation and return the message. `stops`: stop sequences of the request."""
    async with aclosing(answer.run(state, generation)) as events:
        async for _ in events:
            pass
    content = [_content_block(block, block.text) for block in answer.blocks]
    return {**_head_fields(generation), "content": content, **_stop_fields(answer, stops), "usage": _usage(generation)}


async def _events(
    state: AppState, generation: GenerationRequest, answer: AnswerBlocks, stops: Sequence[str]
) -> AsyncGenerator[dict[str, Any]]:
    """Run the generation and yield its events; `message_start` comes after the first step."""
    async with aclosing(answer.run(state, generation)) as events:
        async for event in events:
            if event:
                for fields in _stream_events(event):
                    yield {"index": event.block.number, **fields}
            else:
                start = {**_head_fields(generation), "content": [], "stop_reason": None, "stop_sequence": None}
                usage = _usage(generation) | {"output_tokens": 0}
                yield {"type": "message_start", "message": {**start, "usage": usage}}
    yield {"type": "message_delta", "delta": _stop_fields(answer, stops), "usage": _usage(generation)}
    yield {"type": "message_stop"}


def _head_fields(generation: GenerationRequest) -> dict[str, Any]:
    identity = f"msg_{uuid.uuid4().hex[:24]}"
    return {"id": identity, "type": "message", "role": "assistant", "model": generation.loaded.files.id}


def _stream_events(event: BlockEvent) -> Iterator[dict[str, Any]]:
    """Convert a block event to stream events, which still lack the block's index."""
    match event.action, event.block.kind:
        case "begin", _:
            yield {"type": "content_block_start", "content_block": _content_block(event.block, "")}
        case "more", "thoughts":
            yield {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": event.text}}
        case "more", "text":
            yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": event.text}}
        case "more", _:
            yield {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": event.text}}
        case "end", kind:
            if kind == "thoughts":
                delta = {"type": "signature_delta", "signature": SIGNATURE}
                yield {"type": "content_block_delta", "delta": delta}
            yield {"type": "content_block_stop"}


def _content_block(block: AnswerBlock, text: str) -> dict[str, Any]:
    """Return the content block of an `AnswerBlock`, with `text` as its content."""
    match block.kind:
        case "thoughts":
            return {"type": "thinking", "thinking": text, "signature": SIGNATURE}
        case "text":
            return {"type": "text", "text": text}
    return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": _arguments(text)}


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a call; if `text` is not a JSON object, put it under `INVALID_JSON_KEY`."""
    try:
        return dict(msgspec.json.decode(text or "{}", type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return {INVALID_JSON_KEY: text}


def _stop_fields(answer: AnswerBlocks, stops: Sequence[str]) -> dict[str, Any]:
    choice = answer.choice
    stop = choice.stop_string if choice.stop_string in stops else None
    has_calls = any(block.kind == "call" for block in answer.blocks)
    reason = "stop_sequence" if stop else "tool_use" if has_calls else "end_turn"
    return {"stop_reason": "max_tokens" if choice.finish == "length" else reason, "stop_sequence": stop}


def _usage(generation: GenerationRequest) -> dict[str, Any]:
    """Return the token counts; `input_tokens` excludes the cached prompt tokens."""
    (request,) = generation.requests
    return {
        "input_tokens": len(request.ids) - request.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": request.cached_tokens,
        "output_tokens": request.stats.tokens,
    }
