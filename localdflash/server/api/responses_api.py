"""Serve OpenAI's POST /v1/responses by means of a chat request."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from localdflash.engine.generate import Request
from localdflash.server.api import agent_bodies as bodies
from localdflash.server.api import schemas
from localdflash.server.api.api_state import AppState
from localdflash.server.api.chat_request import prepare_chat, text_of
from localdflash.server.api.content_blocks import AnswerBlock, AnswerBlocks, AnswerParts, BlockEvent
from localdflash.server.api.generation import OVERFLOW, GenerationRequest
from localdflash.server.api.http_responses import ApiError, EventStream, bad, json_of, named_event, with_warning
from localdflash.server.api.request_body import convert

CLIENT_TOOL_TYPES = ("function", "namespace")  # tools of other types, such as web_search, run at OpenAI
NOT_STORED = "responses are not stored: send the whole conversation as input"
LOGPROBS = "message.output_text.logprobs"  # value of `include`
NO_PICTURE = "[a picture, which this model cannot see]"  # replaces a picture in a tool result
Event = dict[str, Any]


@dataclass
class ResponseWriter:
    """Builder of the events of one response, or of the whole response as a JSON object."""

    generation: GenerationRequest
    body: bodies.ResponsesRequest
    answer: AnswerBlocks
    functions: "Mapping[str, ClientTool]"  # the client's tools by their name in the prompt
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _number: int = 0  # sequence number of the next event

    async def events(self, state: AppState) -> AsyncGenerator[Event]:
        """Run the generation and yield all events; `response.created` comes after the first step."""
        async with aclosing(self.answer.run(state, self.generation)) as changes:
            async for change in changes:
                if change:
                    for event in self._block_events(change.block, change):
                        yield event
                else:
                    for name in ("created", "in_progress"):
                        yield self._event(f"response.{name}", response=self._response("in_progress"))
        last = self._whole()
        yield self._event(f"response.{last['status']}", response=last)

    async def whole(self, state: AppState) -> Any:
        """Run the generation and return the `response` of the last event."""
        async with aclosing(self.events(state)) as source:
            *_, last = [event async for event in source]
        return last["response"]

    def failed_event(self, error: ApiError) -> Event:
        """Return the final event of a response that failed."""
        code = error.code if error.code == OVERFLOW else "server_error"
        response = self._response("failed") | {"error": {"code": code, "message": str(error)}}
        return self._event("response.failed", response=response)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _block_events(self, block: AnswerBlock, change: BlockEvent) -> Iterator[Event]:
        kind, is_call = _EVENT_PREFIXES[block.kind], block.kind == "call"
        match change.action:
            case "begin":
                item = self._item(block, "in_progress", begun=True)
                yield self._event("response.output_item.added", output_index=block.number, item=item)
                if not is_call:
                    yield self._content_event(block, "response.content_part.added", part=_part(block, ""))
            case "more":
                yield self._content_event(block, f"{kind}.delta", delta=change.text)
            case "end":
                arguments = {**self._called_name(block), "arguments": block.text or "{}"}
                whole = arguments if is_call else {"text": block.text}
                yield self._content_event(block, f"{kind}.done", **whole)
                if not is_call:
                    yield self._content_event(block, "response.content_part.done", part=_part(block, block.text))
                item = self._item(block, self._status(block))
                yield self._event("response.output_item.done", output_index=block.number, item=item)

    def _item(self, block: AnswerBlock, status: str, *, begun: bool = False) -> dict[str, Any]:
        """Return the output item of a block; with `begun`, its content or arguments are still empty."""
        item: dict[str, Any] = {"id": f"{_ID_PREFIXES[block.kind]}_{block.id}", "status": status}
        content = [] if begun else [_part(block, block.text)]
        match block.kind:
            case "thoughts":
                return item | {"type": "reasoning", "summary": [], "content": content}
            case "text":
                return item | {"type": "message", "role": "assistant", "content": content}
        arguments = "" if begun else block.text or "{}"
        return (
            item
            | {"type": "function_call", "call_id": f"call_{block.id}", "arguments": arguments}
            | self._called_name(block)
        )

    def _called_name(self, block: AnswerBlock) -> dict[str, Any]:
        """Return the name and namespace of the called tool, as the request spells them."""
        if not (function := self.functions.get(block.name)):
            return {"name": block.name}
        return {"name": function.tool.name, **({"namespace": function.namespace} if function.namespace else {})}

    def _content_event(self, block: AnswerBlock, kind: str, **fields: Any) -> Event:
        """Return an event about a block's content, or a call's arguments."""
        index: Event = {} if block.kind == "call" else {"content_index": 0}
        logprobs: Event = {"logprobs": []} if block.kind == "text" and "part" not in fields else {}
        item_id = f"{_ID_PREFIXES[block.kind]}_{block.id}"
        return self._event(kind, item_id=item_id, output_index=block.number, **index, **logprobs, **fields)

    def _status(self, block: AnswerBlock) -> str:
        """Return an item's status: only the last item can be incomplete."""
        is_cut = self.answer.choice.finish == "length" and block is self.answer.blocks[-1]
        return "incomplete" if is_cut else "completed"

    def _whole(self) -> dict[str, Any]:
        cut, blocks = self.answer.choice.finish == "length", self.answer.blocks
        output = [self._item(block, self._status(block)) for block in blocks]
        ended = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {"completed_at": int(time.time())}
        whole = self._response("incomplete" if cut else "completed", output)
        return whole | ended | {"usage": _usage(self.generation, blocks)}

    def _response(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        body, (request,) = self.body, self.generation.requests
        form = body.text and body.text.format
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.generation.loaded.files.id,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": request.params.temperature,
            "text": {"format": msgspec.to_builtins(form or schemas.ResponseFormat("text"))},
            "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
            "tools": [msgspec.to_builtins(function.tool) for function in self.functions.values()],
            "top_p": request.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }


_EVENT_PREFIXES = {
    "thoughts": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
_ID_PREFIXES = {"thoughts": "rs", "text": "msg", "call": "fc"}


async def responses(http: HttpRequest, state: AppState, body: bodies.ResponsesRequest) -> Response:
    """Serve POST /v1/responses. Tools that would run at OpenAI are left out; a Warning header lists them."""
    functions = functions_of(body)
    try:
        generation, make_parts = await prepare_chat(state, chat_request(body, functions))
    except ApiError as error:
        if error.code == OVERFLOW:
            return await _overflow(state, body, error)
        raise
    writer = ResponseWriter(generation, body, AnswerBlocks(make_parts()), functions)
    if body.stream:
        response: Response = EventStream(writer.events(state), named_event, writer.failed_event)
    else:
        response = await json_of(http, writer.whole(state))
    return with_warning(
        response, [tool.name or tool.type for tool in body.tools or () if tool.type not in CLIENT_TOOL_TYPES]
    )


async def _overflow(state: AppState, body: bodies.ResponsesRequest, error: ApiError) -> Response:
    """Report a prompt that is too long: raise `error`, or in a stream send a failure event, whose code Codex reads."""
    error.param = "input"
    if not body.stream:
        raise error
    loaded = await state.ready("chat", body.model)
    generation = GenerationRequest(loaded, [Request([], max_tokens=0)])
    writer = ResponseWriter(generation, body, AnswerBlocks(AnswerParts(split=None, calls=None)), functions={})

    async def events() -> AsyncGenerator[Event]:
        yield writer.failed_event(error)

    return EventStream(events(), named_event)


@dataclass(frozen=True)
class ClientTool:
    """Tool that the client runs, and its namespace ("": none)."""

    tool: bodies.FunctionTool
    namespace: str = ""


def functions_of(body: bodies.ResponsesRequest) -> dict[str, ClientTool]:
    """Return the functions by their name in the prompt: `name`, or `namespace__name`."""
    functions: dict[str, ClientTool] = {}
    for number, tool in enumerate(body.tools or ()):
        is_group = tool.type == "namespace"
        group = tool.tools or () if is_group else (tool,)
        for index, member in enumerate(group):
            if member.type == "function":
                if member.name is None:
                    raise bad(f"tools[{number}]{f'.tools[{index}]' if is_group else ''}.name", "missing")
                namespace = (tool.name or "") if is_group else ""
                functions[_model_name(member.name, namespace)] = ClientTool(member, namespace)
    return functions


def _model_name(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


def chat_request(body: bodies.ResponsesRequest, functions: Mapping[str, ClientTool]) -> schemas.ChatRequest:
    """Translate the request to a chat request; ApiError names an invalid field."""
    _refuse_unsupported(body)
    form = body.text.format if body.text else None
    if form and form.type == "json_schema" and form.schema is None:
        raise bad("text.format.schema", "missing")
    return schemas.ChatRequest(
        **body.shared(),
        messages=[
            *([schemas.ChatMessage("system", body.instructions)] if body.instructions else []),
            *messages_of_items(body.input),
        ],
        tools=[
            schemas.Tool("function", schemas.ToolFunction(name, one.tool.description, one.tool.parameters))
            for name, one in functions.items()
        ],
        tool_choice=_tool_choice(body),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort if body.reasoning else None,
        response_format=form,
        max_tokens=body.max_output_tokens,
    )


def _tool_choice(body: bodies.ResponsesRequest) -> Any:
    match body.tool_choice:
        case bodies.NamedChoice(name):
            return schemas.NamedTool(schemas.CalledFunction(name))
        case bodies.AllowedToolChoice(mode, tools):
            names = [_model_name(one.name, one.namespace) for one in tools if one.type == "function" and one.name]
            allowed = [schemas.NamedTool(schemas.CalledFunction(name)) for name in names]
            return schemas.AllowedChoice(schemas.AllowedTools(mode, allowed))
    return body.tool_choice


def _refuse_unsupported(body: bodies.ResponsesRequest) -> None:
    refused = {
        **dict.fromkeys(("previous_response_id", "conversation", "prompt"), NOT_STORED),
        "background": f"{NOT_STORED}, with background false",
        **dict.fromkeys(("max_tool_calls", "top_logprobs"), "not supported; leave it out"),
    }
    for name, reason in refused.items():
        if getattr(body, name) not in (None, False, 0):
            raise ApiError(400, f"{name}: {reason}", param=name, code="unsupported_parameter")
    if LOGPROBS in (body.include or ()):
        message = f"include: `{LOGPROBS}` is not supported; leave it out"
        raise ApiError(400, message, param="include", code="unsupported_parameter")
    if body.truncation == "auto":
        message = "truncation: only `disabled` is supported"
        raise ApiError(400, message, param="truncation", code="unsupported_parameter")


def messages_of_items(given: str | Sequence[dict[str, object]]) -> list[schemas.ChatMessage]:
    """Convert input items to chat messages; the model's adjacent items become one. ApiError names an invalid item."""
    if isinstance(given, str):
        return [schemas.ChatMessage("user", given)]
    messages = list[schemas.ChatMessage]()
    answering = False  # whether the last message is an assistant message that further items extend
    for number, raw in enumerate(given):
        param = f"input[{number}]"
        item = _parse_item(param, raw)
        from_model = isinstance(item, bodies.CallItem | bodies.ReasoningItem) or (
            isinstance(item, bodies.MessageItem) and item.role == "assistant"
        )
        if from_model and not answering:
            messages.append(schemas.ChatMessage("assistant", "", ""))
        answering = from_model
        match item:
            case bodies.MessageItem() if from_model:
                messages[-1].content = f"{messages[-1].content}{text_of(item.content, f'{param}.content')}"
            case bodies.MessageItem():
                messages.append(schemas.ChatMessage(item.role, text_of(item.content, f"{param}.content")))
            case bodies.CallItem():
                name = _model_name(item.name, item.namespace)
                call = schemas.ToolCall(schemas.CalledFunction(name, item.arguments), item.call_id)
                messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]
            case bodies.ReasoningItem():
                thoughts = item.content or item.summary or []
                messages[-1].reasoning_content = (messages[-1].reasoning_content or "") + text_of(
                    thoughts, f"{param}.content"
                )
            case bodies.OutputItem():
                output = text_of(_replace_pictures(item.output), f"{param}.output")
                messages.append(schemas.ChatMessage("tool", output, tool_call_id=item.call_id))
    return messages


def _replace_pictures(output: str | list[schemas.TextPart]) -> str | list[schemas.TextPart]:
    """Return a tool's result, in which a text replaces each image, for example of Codex's `view_image`."""
    if isinstance(output, str):
        return output
    return [schemas.TextPart("input_text", NO_PICTURE) if part.type == "input_image" else part for part in output]


def _parse_item(param: str, raw: dict[str, object]) -> bodies.Item:
    kind = raw.get("type", "message")
    if isinstance(kind, str) and kind not in bodies.ITEM_TYPES:
        raise bad(f"{param}.type", f"{kind!r} is not supported (expected one of {', '.join(bodies.ITEM_TYPES)})")
    item: bodies.Item = convert({**raw, "type": kind}, bodies.Item, param)  # type: ignore[arg-type]
    return item


def _part(block: AnswerBlock, text: str) -> dict[str, Any]:
    if block.kind == "thoughts":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(generation: GenerationRequest, blocks: Sequence[AnswerBlock]) -> dict[str, Any]:
    """Return the token counts. Reasoning tokens are counted by tokenizing the thoughts again."""
    (request,) = generation.requests
    thoughts = sum(len(generation.loaded.tokenizer.encode(block.text)) for block in blocks if block.kind == "thoughts")
    prompt, generated = len(request.ids), request.stats.tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": request.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": min(thoughts, generated)},
        "total_tokens": prompt + generated,
    }
