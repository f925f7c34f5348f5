"""An answer in the shape of OpenAI's Responses: the events of a stream, each with its number, the last with it all."""

import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from localdflash.server.api.answer_parts import AnswerParts
from localdflash.server.api.answers import cached_tokens
from localdflash.server.api.api_state import AppState
from localdflash.server.api.ask import Ask
from localdflash.server.api.content_blocks import Block, BlockEvent, Grown, growth
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.responses_api.responses_body import ResponsesRequest

Event = dict[str, Any]


@dataclass
class ResponseWriter:
    """The events of one response."""

    ask: Ask
    body: ResponsesRequest
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _number: int = 0  # of the next event

    async def events(self, state: AppState, parts: AnswerParts) -> AsyncGenerator[Event]:
        """All of them; the first come with the first token."""
        begun = False
        async with aclosing(growth(state, self.ask, parts)) as source:
            async for grown in source:
                if not begun:
                    begun = True
                    for name in ("created", "in_progress"):
                        yield self._event(f"response.{name}", response=self._response("in_progress"))
                for one in grown.events:
                    for told in self._told(one, grown):
                        yield told
                if grown.ended:
                    last = self._whole(grown)
                    yield self._event(f"response.{last['status']}", response=last)

    def failed(self, error: ApiError) -> Event:
        """The event of an error in the middle, the last one."""
        response = self._response("failed") | {"error": {"code": "server_error", "message": str(error)}}
        return self._event("response.failed", response=response)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _told(self, event: BlockEvent, grown: Grown) -> Iterator[Event]:
        match event.what:
            case "begin":
                yield from self._begun(event.block)
            case "more":
                yield self._about(event.block, f"{_CONTENTS[event.block.kind]}.delta", delta=event.text)
            case "end":
                yield from self._done(event.block, _status(grown, event.block))

    def _begun(self, block: Block) -> Iterator[Event]:
        item = _item(block, "in_progress", begun=True)
        yield self._event("response.output_item.added", output_index=block.number, item=item)
        if block.kind != "call":
            yield self._about(block, "response.content_part.added", part=_part(block, ""))

    def _done(self, block: Block, status: str) -> Iterator[Event]:
        kind = f"{_CONTENTS[block.kind]}.done"
        if block.kind == "call":
            yield self._about(block, kind, name=block.name, arguments=block.text or "{}")
        else:
            yield self._about(block, kind, text=block.text)
            yield self._about(block, "response.content_part.done", part=_part(block, block.text))
        yield self._event("response.output_item.done", output_index=block.number, item=_item(block, status))

    def _about(self, block: Block, kind: str, **fields: Any) -> Event:
        """An event about the content of an item, or the arguments of a call."""
        place: Event = {} if block.kind == "call" else {"content_index": 0}
        said = block.kind == "text" and "part" not in fields
        place |= {"logprobs": []} if said else {}
        return self._event(kind, item_id=_id(block), output_index=block.number, **place, **fields)

    def _whole(self, grown: Grown) -> dict[str, Any]:
        cut = grown.choice.finish == "length"
        output = [_item(block, _status(grown, block)) for block in grown.blocks]
        ended = {"incomplete_details": {"reason": "max_output_tokens"}} if cut else {"completed_at": int(time.time())}
        return (
            self._response("incomplete" if cut else "completed", output)
            | ended
            | {"usage": _usage(self.ask, grown.blocks)}
        )

    def _response(self, status: str, output: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        body, (request,) = self.body, self.ask.requests
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self.ask.loaded.files.id,
            "output": list(output),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": request.params.temperature,
            "text": {"format": _format(body)},
            "tool_choice": msgspec.to_builtins(body.tool_choice or "auto"),
            "tools": [msgspec.to_builtins(tool) for tool in body.tools or ()],
            "top_p": request.params.top_p,
            "truncation": "disabled",
            "usage": None,
            "metadata": {},
        }


_CONTENTS = {
    "thoughts": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
_PREFIXES = {"thoughts": "rs", "text": "msg", "call": "fc"}


def _id(block: Block) -> str:
    return f"{_PREFIXES[block.kind]}_{block.id}"


def _status(grown: Grown, block: Block) -> str:
    """Whether an item is whole: the one that was cut is the last."""
    cut = grown.ended and grown.choice.finish == "length" and block is grown.blocks[-1]
    return "incomplete" if cut else "completed"


def _item(block: Block, status: str, *, begun: bool = False) -> dict[str, Any]:
    """An item of the output; one that has just begun is empty."""
    item: dict[str, Any] = {"id": _id(block), "status": status}
    content = [] if begun else [_part(block, block.text)]
    match block.kind:
        case "thoughts":
            return item | {"type": "reasoning", "summary": [], "content": content}
        case "text":
            return item | {"type": "message", "role": "assistant", "content": content}
    called = {"call_id": f"call_{block.id}", "name": block.name, "arguments": "" if begun else block.text or "{}"}
    return item | {"type": "function_call", **called}


def _part(block: Block, text: str) -> dict[str, Any]:
    if block.kind == "thoughts":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _format(body: ResponsesRequest) -> dict[str, Any]:
    asked = body.text.format if body.text else None
    if asked is None or asked.type != "json_schema":
        return {"type": asked.type if asked else "text"}
    return {"type": asked.type, "name": asked.name or "", "schema": asked.schema, "strict": True}


def _usage(ask: Ask, blocks: Sequence[Block]) -> dict[str, Any]:
    """Tokens; those of thoughts are counted from their text."""
    (request,) = ask.requests
    thoughts = sum(len(ask.loaded.tokenizer.encode(block.text)) for block in blocks if block.kind == "thoughts")
    prompt, said = len(request.ids), request.stats.tokens
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached_tokens(request), "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": min(thoughts, said)},
        "total_tokens": prompt + said,
    }
