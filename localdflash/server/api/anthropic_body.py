"""The bodies of POST /v1/messages and /v1/messages/count_tokens.

Fields that nobody knows are ignored, and so are hints that change no text here: `metadata`, `cache_control`,
`service_tier`, a budget for thinking.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from localdflash.server.api.schemas import Count, Seed, Share

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class TextBlock(Struct, tag="text"):
    """Text."""

    text: str


class ImageBlock(Struct, tag="image"):
    """A picture, which nothing here can look at."""


class DocumentBlock(Struct, tag="document"):
    """A document, which nothing here can read."""


class ThinkingBlock(Struct, tag="thinking"):
    """What was thought before an answer."""

    thinking: str


class RedactedBlock(Struct, tag="redacted_thinking"):
    """Thoughts that only their author can read."""


class ToolUseBlock(Struct, tag="tool_use"):
    """A call that an answer has made."""

    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(Struct, tag="tool_result"):
    """What a call has brought."""

    tool_use_id: str
    content: str | list[TextBlock | ImageBlock | DocumentBlock] | None = None
    is_error: bool | None = None


MessageBlock = TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock


class MessageParam(Struct):
    """A message."""

    role: Literal["user", "assistant"]
    content: str | list[MessageBlock]


class ToolDefinition(Struct):
    """A tool; `input_schema` is the schema of its arguments."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,128}$")]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class ToolChoice(Struct):
    """Choice between forbidden, allowed and required tool calls."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct):
    """Switch for thinking before the answer."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Struct):
    """The form that the answer must have."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct):
    """How an answer is written."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class CountRequest(Struct, kw_only=True):
    """POST /v1/messages/count_tokens: what makes the prompt."""

    messages: Annotated[list[MessageParam], Meta(min_length=1)]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages. `seed` and `draft` are ours."""

    max_tokens: Count
    stream: bool | None = None
    stop_sequences: Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    top_p: Share | None = None
    top_k: Count | None = None
    seed: Seed | None = None
    draft: bool | None = None
