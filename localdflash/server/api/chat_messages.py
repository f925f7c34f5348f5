"""A request's messages, as the chat template takes them."""

from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
from msgspec import UnsetType

from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.schemas import ChatMessage, TextPart, ToolCall
from localdflash.text.chat_template import CalledTool, Role, TemplateMessage
from localdflash.text.thoughts import joined

ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


def messages_of(given: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Messages as the chat template takes them; ApiError names what is wrong with one."""
    messages = []
    names: dict[str, str] = {}  # of the tools that were called, by the id of the call
    for number, message in enumerate(given):
        place = f"messages[{number}]"
        if message.role not in ROLES:
            raise bad(f"{place}.role", f"unknown; one of {', '.join(ROLES)}")
        role = ROLES[message.role]
        calls = tuple(map(_called, message.tool_calls or ())) if role == "assistant" else ()
        names |= {call.id: call.name for call in calls}
        if isinstance(message.content, UnsetType) and not calls:
            raise bad(f"{place}.content", "missing")
        content = text_of(None if isinstance(message.content, UnsetType) else message.content, f"{place}.content")
        thoughts = (message.reasoning_content or "") if role == "assistant" else ""
        call_id = (message.tool_call_id or "") if role == "tool" else ""
        messages.append(TemplateMessage(role, joined(thoughts, content), calls, call_id, names.get(call_id, "")))
    return messages


def _called(call: ToolCall) -> CalledTool:
    """A call whose arguments are an object, where they are JSON of one: templates write them in their own way."""
    try:
        arguments: object = msgspec.json.decode(call.function.arguments or "{}", type=dict)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments
    return CalledTool(call.id, call.function.name, arguments)


def text_of(content: str | list[TextPart] | None, place: str) -> str:
    """A message's content as one text."""
    if not isinstance(content, list):
        return content or ""
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise bad(f"{place}[{number}]", "only parts of type text are supported")
    return "".join(part.text or "" for part in content)


def bad(param: str, what: str) -> ApiError:
    """An error that names a field."""
    return ApiError(400, f"{param}: {what}", param=param, code="invalid_value")
