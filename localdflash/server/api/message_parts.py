"""The parts of a choice in the words of OpenAI's chat: a delta for each piece of text, or a whole message."""

import uuid
from typing import Any

from localdflash.server.api.answer_parts import Added, AnswerParts
from localdflash.text.tool_calls import CallDelta


class MessageParts:
    """The message of one choice as its text grows."""

    def __init__(self, parts: AnswerParts) -> None:
        self._parts = parts
        self._calls: list[dict[str, Any]] = []  # as a whole message has them

    @property
    def called(self) -> bool:
        """Whether there is a call by now."""
        return bool(self._calls)

    def push(self, text: str) -> dict[str, Any]:
        """The delta that a piece of text adds; it may be empty."""
        return self._delta(self._parts.push(text))

    def finish(self) -> dict[str, Any]:
        """The delta of what was held back, at the end."""
        return self._delta(self._parts.finish())

    def message(self, text: str) -> dict[str, Any]:
        """All of it at once, as a message."""
        parts = [self.push(text), self.finish()]
        whole: dict[str, Any] = {"role": "assistant", "content": "".join(part.get("content", "") for part in parts)}
        whole["refusal"] = None
        if thoughts := "".join(part.get("reasoning_content", "") for part in parts):
            whole["reasoning_content"] = thoughts
        if self._calls:
            whole |= {"content": whole["content"] or None, "tool_calls": self._calls}
        return whole

    def _delta(self, added: Added) -> dict[str, Any]:
        told: dict[str, Any] = {
            "reasoning_content": added.thoughts,
            "content": added.said,
            "tool_calls": [*map(self._call, added.calls)],
        }
        return {name: part for name, part in told.items() if part}

    def _call(self, delta: CallDelta) -> dict[str, Any]:
        if delta.index < len(self._calls):
            self._calls[delta.index]["function"]["arguments"] += delta.arguments
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        function = {"name": delta.name, "arguments": delta.arguments}
        call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
        self._calls.append({**call, "function": dict(function)})
        return {"index": delta.index, **call}
