"""An answer in Anthropic's shape: one message, or the events that it is put together from."""

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec

from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.answers import cached_tokens
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask
from localdflash.server.api.content_blocks import Block, BlockEvent, Grown, growth, whole

INVALID = "INVALID_JSON"  # where Anthropic has a client put arguments that are no JSON of an object
SIGNATURE = ""  # of thoughts: nobody but this machine has made them


async def message(state: AppState, ask: Ask, parts: AnswerParts, stops: Sequence[str]) -> dict[str, Any]:
    """The whole message; `stops` are the stop sequences that the request has asked for."""
    grown = await whole(state, ask, parts)
    return {**_head(ask), "content": [*map(_block, grown.blocks)], **_end(grown, stops), "usage": _usage(ask)}


async def events(state: AppState, ask: Ask, parts: AnswerParts, stops: Sequence[str]) -> AsyncGenerator[dict[str, Any]]:
    """The events of the message; the first one comes with the first token."""
    begun = False
    async with aclosing(growth(state, ask, parts)) as source:
        async for grown in source:
            if not begun:
                begun = True
                start = {**_head(ask), "content": [], "stop_reason": None, "stop_sequence": None}
                yield {"type": "message_start", "message": {**start, "usage": _usage(ask) | {"output_tokens": 0}}}
            for one in grown.events:
                for told in _told(one):
                    yield told
            if grown.ended:
                yield {"type": "message_delta", "delta": _end(grown, stops), "usage": _usage(ask)}
    yield {"type": "message_stop"}


def _head(ask: Ask) -> dict[str, Any]:
    identity = f"msg_{uuid.uuid4().hex[:24]}"
    return {"id": identity, "type": "message", "role": "assistant", "model": ask.loaded.files.id}


def _told(event: BlockEvent) -> list[dict[str, Any]]:
    index, empty = event.block.number, replace(event.block, text="")
    match event.what:
        case "begin":
            return [{"type": "content_block_start", "index": index, "content_block": _block(empty)}]
        case "more":
            return [{"type": "content_block_delta", "index": index, "delta": _delta(event)}]
    signed: list[dict[str, Any]] = []
    if event.block.kind == "thoughts":
        delta = {"type": "signature_delta", "signature": SIGNATURE}
        signed = [{"type": "content_block_delta", "index": index, "delta": delta}]
    return [*signed, {"type": "content_block_stop", "index": index}]


def _delta(event: BlockEvent) -> dict[str, Any]:
    match event.block.kind:
        case "thoughts":
            return {"type": "thinking_delta", "thinking": event.text}
        case "text":
            return {"type": "text_delta", "text": event.text}
    return {"type": "input_json_delta", "partial_json": event.text}


def _block(block: Block) -> dict[str, Any]:
    """A block with its text so far."""
    match block.kind:
        case "thoughts":
            return {"type": "thinking", "thinking": block.text, "signature": SIGNATURE}
        case "text":
            return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": f"toolu_{block.id}", "name": block.name, "input": _arguments(block.text)}


def _arguments(text: str) -> dict[str, Any]:
    """Arguments as an object: what a model has cut or misspelled is passed on as it is."""
    try:
        return dict(msgspec.json.decode(text or "{}", type=dict[str, Any]))
    except (msgspec.DecodeError, RecursionError):
        return {INVALID: text}


def _end(grown: Grown, stops: Sequence[str]) -> dict[str, Any]:
    choice = grown.choice
    stop = choice.stop_string if choice.stop_string in stops else None
    reason = "stop_sequence" if stop else "tool_use" if grown.called else "end_turn"
    return {"stop_reason": "max_tokens" if choice.finish == "length" else reason, "stop_sequence": stop}


def _usage(ask: Ask) -> dict[str, Any]:
    """Tokens; those of the prompt that a cache held are counted apart."""
    (request,) = ask.requests
    cached = cached_tokens(request)
    return {
        "input_tokens": len(request.ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": request.stats.tokens,
    }
