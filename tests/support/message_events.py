"""Strict reader of the events of Anthropic's Messages API."""

import json
from collections.abc import Sequence
from typing import Any

PING = 'event: ping\ndata: {"type":"ping"}'
FIELDS = {  # of each event, next to its type
    "message_start": {"message"},
    "content_block_start": {"index", "content_block"},
    "content_block_delta": {"index", "delta"},
    "content_block_stop": {"index"},
    "message_delta": {"delta", "usage"},
    "message_stop": set(),
    "error": {"error"},
}
GROWS = {  # the field of a block that each delta extends
    "text_delta": ("text", "text", "text"),
    "thinking_delta": ("thinking", "thinking", "thinking"),
    "signature_delta": ("thinking", "signature", "signature"),
    "input_json_delta": ("tool_use", "partial_json", "json"),
}


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream; each event's name equals its type."""
    *blocks, rest = text.split("\n\n")
    assert rest == ""
    events = list[dict[str, Any]]()
    for block in (one for one in blocks if one != PING):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert set(event) == {"type"} | FIELDS[event["type"]]
        events.append(event)
    return events


def message_of(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the events assemble."""
    first, *middle, delta, last = events
    assert (first["type"], delta["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    assert message["usage"]["output_tokens"] == 0
    open_block: dict[str, Any] | None = None
    for event in middle:
        index = event["index"]
        match event["type"]:
            case "content_block_start":
                assert (open_block, index) == (None, len(message["content"]))
                open_block = {**event["content_block"], "json": ""}
                assert not any(open_block.get(name) for name in ("text", "thinking", "input", "signature"))
                message["content"].append(open_block)
            case "content_block_delta":
                assert open_block
                assert index == len(message["content"]) - 1
                kind, name, grown = GROWS[event["delta"]["type"]]
                assert set(event["delta"]) == {"type", name}
                assert open_block["type"] == kind
                open_block[grown] += event["delta"][name]
            case "content_block_stop":
                assert open_block
                written = open_block.pop("json")
                if open_block["type"] == "tool_use":
                    open_block["input"] = json.loads(written or "{}")
                open_block = None
    assert open_block is None
    return {**message, **delta["delta"], "usage": message["usage"] | delta["usage"]}
