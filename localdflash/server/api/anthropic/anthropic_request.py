"""A request in Anthropic's words as one of our chat.

Text blocks of a user's message, and of the system's, are paragraphs: a blank line is put between them. Those of an
answer are one text that calls have cut. Without `thinking` a model does not think, if its template can tell it so.
"""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from localdflash.server.api.anthropic.anthropic_body import (
    Block,
    CountRequest,
    DocumentBlock,
    Effort,
    ImageBlock,
    MessageParam,
    MessagesRequest,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from localdflash.server.api.chat_messages import bad
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

BETWEEN = "\n\n"  # paragraphs


def chat_request(body: CountRequest) -> ChatRequest:
    """The same request as our chat takes it; ApiError names what is wrong with it."""
    tools = [_tool(f"tools[{number}]", tool) for number, tool in enumerate(body.tools or ())]
    choice = body.tool_choice or ToolChoice("auto")
    config = body.output_config
    request = ChatRequest(
        model=body.model,
        messages=_messages(body),
        tools=tools,
        tool_choice=_choice(choice, tools),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        reasoning_effort=_effort(config.effort) if config else None,
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


def _effort(asked: Effort | None) -> Literal["low", "medium", "high"] | None:
    match asked:
        case "xhigh" | "max":
            return "high"
        case known:
            return known


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


def _said(place: str, content: str | list[Block]) -> Iterator[ChatMessage]:
    """A user's message: the results of calls, and the text before and after them."""
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


def _blocks(content: str | list[Block]) -> Sequence[Block]:
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
            if choice.name not in [tool.function.name for tool in tools]:
                raise bad("tool_choice.name", "no such tool among the tools")
            return NamedTool("function", NamedFunction(choice.name or ""))
        case known:
            return known
