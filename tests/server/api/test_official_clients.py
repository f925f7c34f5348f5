"""OpenAI's official client over TCP and through the guard: its helpers assemble tool calls, which it sends back."""

import json
import socket
from pathlib import Path
from typing import Any

import openai

from localdflash.server.guard import Guard
from tests.server.api.dialects import CHAT, RESPONSES, USER
from tests.server.api.test_tools import ARGUMENTS, CALLS, ENDS, TOOLS
from tests.support.scripted_pair import scripted_client
from tests.support.served import KEY, serving

OPENAI_CHAT, OPENAI_RESPONSES = (one.body(tools=TOOLS, max_tokens=300)["tools"] for one in (CHAT, RESPONSES))
ASKED: Any = [USER]


def test_openais_helpers_put_a_call_together_and_it_goes_back(tool_vocabularies: dict[str, Path]) -> None:
    with (
        scripted_client(tool_vocabularies["harmony"], *CALLS["harmony"], ENDS["harmony"]) as (client, _),
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(Guard(client.app, key=KEY), listener),
        openai.OpenAI(
            api_key=KEY, base_url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1", max_retries=0
        ) as official,
    ):
        common: Any = {"model": "localdflash", "temperature": 0}
        with official.chat.completions.stream(**common, messages=ASKED, tools=OPENAI_CHAT) as stream:
            assert "tool_calls.function.arguments.done" in {event.type for event in stream}
            message = stream.get_final_completion().choices[0].message
        assert message.tool_calls
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", ARGUMENTS)
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        messages = [*ASKED, message.model_dump(exclude_none=True), result]
        again = official.chat.completions.create(**common, messages=messages, tools=OPENAI_CHAT)
        assert again.choices[0].message.tool_calls
        with official.responses.stream(**common, input=ASKED, tools=OPENAI_RESPONSES) as events:
            kinds = {event.type for event in events}
            final = events.get_final_response()
        assert {"response.function_call_arguments.delta", "response.completed"} <= kinds
        item: Any = final.output[-1]
        assert json.loads(item.arguments) == ARGUMENTS
        items: list[Any] = [*ASKED, *(one.model_dump(exclude_none=True) for one in final.output)]
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "rain"})
        more = official.responses.create(**common, input=items, tools=OPENAI_RESPONSES)
        assert more.output[-1].type == "function_call"
