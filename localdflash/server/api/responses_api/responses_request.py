"""A request of OpenAI's Responses as one of our chat.

Items that belong to one answer (thoughts, what it said, its calls) become one message of it. Nothing is kept here, so
what refers to something kept is refused.
"""

from collections.abc import Sequence
from typing import Literal

from localdflash.server.api.chat_messages import bad
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.request_body import converted
from localdflash.server.api.responses_api.responses_body import (
    ITEMS,
    CallItem,
    ContentPart,
    Effort,
    FunctionTool,
    Item,
    MessageItem,
    NamedChoice,
    OutputItem,
    ReasoningItem,
    ResponsesRequest,
)
from localdflash.server.api.schemas import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    JsonSchema,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolFunction,
)
from localdflash.server.api.tools import check_schema

KEPT = "responses are not kept here: send the whole conversation as input"


def chat_request(body: ResponsesRequest) -> ChatRequest:
    """The same request as our chat takes it; ApiError names what is wrong with it."""
    _refuse_what_is_kept(body)
    tools = [_tool(f"tools[{number}]", tool) for number, tool in enumerate(body.tools or ())]
    return ChatRequest(
        model=body.model,
        messages=_instructed(body.instructions or "", messages_of_items(body.input)),
        tools=tools,
        tool_choice=_choice(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=_effort(body.reasoning.effort if body.reasoning else None),
        response_format=_format(body),
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        seed=body.seed,
        draft=body.draft,
    )


def _refuse_what_is_kept(body: ResponsesRequest) -> None:
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(body, name) is not None:
            raise ApiError(400, f"{name}: {KEPT}", param=name, code="unsupported_parameter")
    for name in ("store", "background"):
        if getattr(body, name):
            raise ApiError(400, f"{name}: {KEPT}, with {name} false", param=name, code="unsupported_parameter")
    for name in ("max_tool_calls", "top_logprobs"):
        if getattr(body, name):
            raise ApiError(400, f"{name}: not supported; leave it out", param=name, code="unsupported_parameter")
    if body.truncation == "auto":
        raise ApiError(
            400, "truncation: only `disabled` is supported", param="truncation", code="unsupported_parameter"
        )


def _instructed(instructions: str, messages: list[ChatMessage]) -> list[ChatMessage]:
    """The messages behind one of the system, which what stands first in that role belongs to: templates take one."""
    first = next((at for at, one in enumerate(messages) if one.role not in ("system", "developer")), len(messages))
    parts = [instructions, *(str(one.content) for one in messages[:first])]
    system = "\n\n".join(part for part in parts if part)
    return [*([ChatMessage("system", system)] if system or first == len(messages) else []), *messages[first:]]


def messages_of_items(given: str | Sequence[dict[str, object]]) -> list[ChatMessage]:
    """The messages of a conversation."""
    if isinstance(given, str):
        return [ChatMessage("user", given)]
    told = list[ChatMessage]()
    answering = False  # the last message is one of the model's that goes on
    for number, raw in enumerate(given):
        place = f"input[{number}]"
        item = _item(place, raw)
        answers = isinstance(item, CallItem | ReasoningItem) or (
            isinstance(item, MessageItem) and item.role == "assistant"
        )
        if answers and not answering:
            told.append(ChatMessage("assistant", "", ""))
        answering = answers
        match item:
            case MessageItem() if answers:
                told[-1].content = f"{told[-1].content}{_text(f'{place}.content', item.content)}"
            case MessageItem():
                told.append(ChatMessage(item.role, _text(f"{place}.content", item.content)))
            case CallItem():
                call = ToolCall(CalledFunction(item.name, item.arguments), item.call_id)
                told[-1].tool_calls = [*(told[-1].tool_calls or ()), call]
            case ReasoningItem():
                thoughts = item.content or item.summary or []
                told[-1].reasoning_content = (told[-1].reasoning_content or "") + _text(f"{place}.content", thoughts)
            case OutputItem():
                output = _text(f"{place}.output", item.output)
                told.append(ChatMessage("tool", output, tool_call_id=item.call_id))
    return told


def _item(place: str, raw: dict[str, object]) -> Item:
    kind = raw.get("type", "message")
    if isinstance(kind, str) and kind not in ITEMS:
        raise bad(f"{place}.type", f"{kind!r} is not supported: one of {', '.join(ITEMS)}")
    item: Item = converted({**raw, "type": kind}, Item, place)  # type: ignore[arg-type]
    return item


def _text(place: str, content: str | Sequence[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part.text is None or not part.type.endswith("_text"):
            raise bad(f"{place}[{number}]", "pictures, files and sound are not supported, only text")
    return "".join(part.text or "" for part in content)


def _tool(place: str, tool: FunctionTool) -> Tool:
    if tool.type != "function":
        raise bad(f"{place}.type", f"{tool.type!r} is not supported: only functions of the client's own are")
    if tool.name is None:
        raise bad(f"{place}.name", "missing")
    check_schema(f"{place}.parameters", tool.parameters or {})
    return Tool("function", ToolFunction(tool.name, tool.description, tool.parameters))


def _choice(
    choice: Literal["none", "auto", "required"] | NamedChoice | None, tools: Sequence[Tool]
) -> Literal["none", "auto", "required"] | NamedTool | None:
    if not isinstance(choice, NamedChoice):
        return choice
    if choice.name not in [tool.function.name for tool in tools]:
        raise bad("tool_choice.name", "no such tool among the tools")
    return NamedTool("function", NamedFunction(choice.name))


def _effort(asked: Effort | None) -> Literal["none", "minimal", "low", "medium", "high"] | None:
    match asked:
        case "xhigh" | "max":
            return "high"
        case known:
            return known


def _format(body: ResponsesRequest) -> ResponseFormat | None:
    asked = body.text.format if body.text else None
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return ResponseFormat("json_object")
    if asked.schema is None:
        raise bad("text.format.schema", "missing")
    return ResponseFormat("json_schema", JsonSchema(asked.schema))
