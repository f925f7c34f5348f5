"""Takes the text of one choice apart into what a chat's message has: thoughts, what is said, calls of tools."""

import uuid
from typing import Any

from localdflash.text.thoughts import ThoughtSplit
from localdflash.text.tool_calls import CallDelta, CallReader


class MessageParts:
    """The parts of one choice as its text grows; without `split` or `calls` that much stays in the content."""

    def __init__(self, split: ThoughtSplit | None, calls: CallReader | None) -> None:
        self._split, self._reader = split, calls
        self._calls: list[dict[str, Any]] = []  # as a whole message has them

    @property
    def called(self) -> bool:
        """Whether there is a call by now."""
        return bool(self._calls)

    def push(self, text: str) -> dict[str, Any]:
        """The delta that a piece of text adds; it may be empty."""
        thoughts, said = self._split.push(text) if self._split else ("", text)
        said, calls = self._reader.push(said) if self._reader else (said, [])
        return self._delta(thoughts, said, calls)

    def finish(self) -> dict[str, Any]:
        """The delta of what was held back, at the end."""
        thoughts, rest = self._split.finish() if self._split else ("", "")
        said, calls = self._reader.push(rest) if self._reader else (rest, [])
        more, last = self._reader.finish() if self._reader else ("", [])
        return self._delta(thoughts, said + more, [*calls, *last])

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

    def _delta(self, thoughts: str, said: str, calls: list[CallDelta]) -> dict[str, Any]:
        told: dict[str, Any] = {"reasoning_content": thoughts, "content": said, "tool_calls": [*map(self._call, calls)]}
        return {name: part for name, part in told.items() if part}

    def _call(self, delta: CallDelta) -> dict[str, Any]:
        if delta.index < len(self._calls):
            self._calls[delta.index]["function"]["arguments"] += delta.arguments
            return {"index": delta.index, "function": {"arguments": delta.arguments}}
        function = {"name": delta.name, "arguments": delta.arguments}
        call = {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
        self._calls.append({**call, "function": dict(function)})
        return {"index": delta.index, **call}
