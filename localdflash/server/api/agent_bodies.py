"""Request bodies of /v1/messages and /v1/responses; fields that are not declared, such as `user`, are ignored."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from localdflash.server.api.schemas import Count, Effort, GenerationFields, Limit, ResponseFormat, TextPart


class TextBlock(Struct, tag="text"):
    """Text of a message."""

    text: str


class ImageBlock(Struct, tag="image"):
    """Picture. It is refused, because the models only read text."""


class DocumentSource(Struct):
    """Contents of a document; if `type` is "text", `data` is plain text."""

    type: str
    data: str = ""


class DocumentBlock(Struct, tag="document"):
    """Document; a source whose type is not "text" is refused."""

    source: DocumentSource
    title: str | None = None


class ThinkingBlock(Struct, tag="thinking"):
    """Reasoning before an answer."""

    thinking: str


class RedactedBlock(Struct, tag="redacted_thinking"):
    """Encrypted reasoning. It is left out of the prompt."""


class ToolUseBlock(Struct, tag="tool_use"):
    """Tool call of an earlier answer."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct, tag="tool_result"):
    """Result of a tool call."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


MessageBlock = TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock


class MessageParam(Struct):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[MessageBlock]


class ToolDefinition(Struct):
    """Tool; `input_schema`: JSON schema of its arguments. Tools with another `type` than "custom" are Anthropic's."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,128}$")]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Struct):
    """Rule for tool calls: "none", "auto" (allowed), "any" (required), or "tool" (the tool `name` is required)."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """Setting whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputConfig(Struct):
    """Reasoning effort and output format of an answer."""

    effort: Effort | None = None
    format: ResponseFormat | None = None


class CountRequest(GenerationFields, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages. `seed` and `draft` are our additions."""

    max_tokens: Count
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64)] | None = None


class MessageItem(Struct, tag="message"):
    """Message of a conversation."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]


class CallItem(Struct, tag="function_call"):
    """Tool call of an earlier answer."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class OutputItem(Struct, tag="function_call_output"):
    """Result of a tool call."""

    call_id: str
    output: str | list[TextPart]


class ReasoningItem(Struct, tag="reasoning"):
    """Reasoning before an answer; encrypted reasoning is ignored."""

    summary: list[TextPart] | None = None
    content: list[TextPart] | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


class FunctionTool(Struct):
    """Tool; `parameters`: JSON schema of its arguments. A tool with `type` "namespace" is a group of `tools`."""

    type: str
    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,128}$")] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: list["FunctionTool"] | None = None


class NamedChoice(Struct, tag="function"):
    """Tool that must be called."""

    name: str


class AllowedTool(Struct):
    """Tool of an `AllowedToolChoice`; types other than "function" are ignored."""

    type: str
    name: str | None = None
    namespace: str | None = None


class AllowedToolChoice(Struct, tag="allowed_tools"):
    """Tools that may be called, or of which one must be called."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]


class TextConfig(Struct):
    """Output format of an answer."""

    format: ResponseFormat | None = None


class Reasoning(Struct):
    """Reasoning effort."""

    effort: Effort | None = None


class ResponsesRequest(GenerationFields, kw_only=True):
    """POST /v1/responses. `seed`, `top_k` and `draft` are our additions; `responses_api` refuses stored state."""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]  # items: see `Item`; default type: "message"
    instructions: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Limit | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None  # returned unchanged
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
