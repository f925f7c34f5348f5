"""Tools for a model whose template knows none, or in a syntax that is not read here: told in the conversation's words.

    system    ... <tools> one line of JSON for each tool </tools> ...
    assistant <tool_call> {"name": "f", "arguments": {...}} </tool_call>
    user      <tool_response> what came of it </tool_response>

The marks are Hermes', which many models have met; here they are letters, not tokens, and so is all that tools and
their results say. Results of calls that follow one another are one message, as templates want turns to alternate.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from localdflash.text.chat_template import CalledTool, TemplateMessage

_RESULT = "<tool_response>\n{}\n</tool_response>"
_TOLD = """\
You can call these tools, each described by a line of JSON:
<tools>
{tools}
</tools>
To call one, end your message with its name and its arguments, like this:
<tool_call>
{{"name": "the name", "arguments": {{"a parameter": "its value"}}}}
</tool_call>
You are then told what came of it between <tool_response> and </tool_response>."""


def in_words(messages: Sequence[TemplateMessage], tools: Sequence[Mapping[str, Any]]) -> list[TemplateMessage]:
    """The conversation with its tools, their calls and results as text of its messages."""
    told: list[TemplateMessage] = []
    for results, group in groupby(messages, key=lambda message: message.role == "tool"):
        if results:
            told.append(TemplateMessage("user", "\n".join(_RESULT.format(message.content) for message in group)))
        else:
            told += [replace(message, content=_said(message), calls=()) for message in group]
    if not tools:
        return told
    words = _TOLD.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if told[0].role == "system":
        return [replace(told[0], content="\n\n".join(filter(None, (told[0].content, words)))), *told[1:]]
    return [TemplateMessage("system", words), *told]


def _said(message: TemplateMessage) -> str:
    """What an answer said, and its calls behind it."""
    return "\n".join(filter(None, (message.content, *map(_call, message.calls))))


def _call(call: CalledTool) -> str:
    written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"
