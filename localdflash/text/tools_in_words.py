"""Tools described in the messages, for models whose template has no tools or an unsupported syntax.

    system    ... <tools> one line of JSON for each tool </tools> ...
    assistant <tool_call> {"name": "f", "arguments": {...}} </tool_call>
    user      <tool_response> its result </tool_response>

The marks are Hermes', as plain text. Consecutive results are one message, since templates want turns to alternate.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from localdflash.text.chat_template import CalledTool, TemplateMessage

_RESULT = "<tool_response>\n{}\n</tool_response>"
_INSTRUCTIONS = """\
You can call these tools, each described by a line of JSON:
<tools>
{tools}
</tools>
To call one, end your message with its name and its arguments, like this:
<tool_call>
{{"name": "the name", "arguments": {{"a parameter": "its value"}}}}
</tool_call>
You are then told what came of it between <tool_response> and </tool_response>."""


def describe_in_words(messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
    """Return the conversation with its tools, their calls and results as text of the messages."""
    described: list[TemplateMessage] = []
    for results, group in groupby(messages, key=lambda message: message.role == "tool"):
        if results:
            described.append(TemplateMessage("user", "\n".join(_RESULT.format(message.content) for message in group)))
        else:
            described += [replace(message, content=_text_with_calls(message), calls=()) for message in group]
    if not (tools and described):
        return described
    words = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if described[0].role == "system":
        return [replace(described[0], content="\n\n".join(filter(None, (described[0].content, words)))), *described[1:]]
    return [TemplateMessage("system", words), *described]


def _text_with_calls(message: TemplateMessage) -> str:
    """Return an answer's text with its calls after it."""
    return "\n".join(filter(None, (message.content, *map(_call, message.calls))))


def _call(call: CalledTool) -> str:
    written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"
