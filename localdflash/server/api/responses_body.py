"""The body of POST /v1/responses.

Fields that nobody knows are ignored, and so are those that change no text here: `metadata`, `user`, `include` of
encrypted thoughts, keys of caches.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from localdflash.server.api.schemas import Effort, Limit, Seed, Share


class ContentPart(Struct):
    """A part of an item's content."""

    type: str
    text: str | None = None


class MessageItem(Struct, tag="message"):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ContentPart]


class CallItem(Struct, tag="function_call"):
    """A call that an answer has made."""

    call_id: str
    name: str
    arguments: str


class OutputItem(Struct, tag="function_call_output"):
    """What a call has brought."""

    call_id: str
    output: str | list[ContentPart]


class ReasoningItem(Struct, tag="reasoning"):
    """What was thought before an answer; encrypted thoughts can be read by their author only."""

    summary: list[ContentPart] | None = None
    content: list[ContentPart] | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem
ITEMS = ("message", "function_call", "function_call_output", "reasoning")


class FunctionTool(Struct):
    """A tool; `parameters` is the schema of its arguments."""

    type: str
    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,128}$")] | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedChoice(Struct):
    """The tool that is to be called."""

    type: Literal["function"]
    name: str


class TextFormat(Struct):
    """The form that the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    schema: dict[str, Any] | None = None
    name: str | None = None


class TextConfig(Struct):
    """How an answer is written."""

    format: TextFormat | None = None


class Reasoning(Struct):
    """How much is thought."""

    effort: Effort | None = None


class ResponsesRequest(Struct, kw_only=True):
    """POST /v1/responses. `seed` and `draft` are ours."""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]  # of `Item`; a message may leave its type out
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Limit | None = None
    max_tool_calls: int | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    top_p: Share | None = None
    top_logprobs: int | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    seed: Seed | None = None
    draft: bool | None = None
