"""POST /v1/messages, held against the published form by hand: what an agent of Anthropic's puts together from it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.api.test_tools import ARGUMENTS, CALLS, ENDS, SCHEMA
from tests.support.chat_formats import tool_vocabularies, vocabularies
from tests.support.message_events import message_of, messages_events
from tests.support.scripted_pair import scripted_client
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies", "vocabularies"]

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
USER = {"role": "user", "content": "Will it rain?"}
TOOLS = [
    {"name": "weather", "description": "What it is like", "input_schema": SCHEMA},
    {"name": "now", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
]


def asked(**fields: Any) -> dict[str, Any]:
    return {"model": "localdflash", "messages": [USER], "temperature": 0, "max_tokens": 200, **fields}


def told(client: Any, body: dict[str, Any]) -> dict[str, Any]:
    """The message, which the events add up to as well."""
    response = client.post(MESSAGES, body)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    streamed = message_of(messages_events(client, body))
    for message in (whole, streamed):
        assert message.pop("id").startswith("msg_")
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id").startswith("toolu_")
        usage = message["usage"]
        message["usage"] = usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]
        if message["stop_reason"] == "stop_sequence":  # what a draft brought behind it was generated, too
            message["usage"] = message["usage"][:1]
    assert streamed == whole
    return whole


def test_an_answer_is_that_of_the_chat(client: Any) -> None:
    body = asked(system="Be brief.", max_tokens=24)
    message = told(client, body)
    chat = {"messages": [{"role": "system", "content": "Be brief."}, USER], "temperature": 0, "max_tokens": 24}
    expected = client.post(CHAT, chat).json()
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "embedded",
        "content": [{"type": "text", "text": expected["choices"][0]["message"]["content"]}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": (expected["usage"]["prompt_tokens"], 24),
    }


def test_a_cached_prompt_is_counted_apart(client: Any) -> None:
    body = asked(messages=[{"role": "user", "content": "Nobody asked this before"}], max_tokens=2)
    first, second = (client.post(MESSAGES, body).json()["usage"] for _ in range(2))
    size = client.post(f"{MESSAGES}/count_tokens", body).json()
    for usage in (first, second):
        assert size == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert second["input_tokens"] == 1


def test_a_stop_sequence_is_named(client: Any) -> None:
    text = told(client, asked(max_tokens=24))["content"][0]["text"]
    message = told(client, asked(max_tokens=24, stop_sequences=["never", text[5:9]]))
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", text[5:9])
    assert message["content"] == [{"type": "text", "text": text[: text.index(text[5:9])]}]


def test_an_answer_that_was_begun_goes_on(client: Any) -> None:
    text = told(client, asked(max_tokens=24))["content"][0]["text"]
    begun = {"role": "assistant", "content": text[:8]}
    chat = {"messages": [USER, begun], "continue_final_message": True, "temperature": 0, "max_tokens": 9}
    expected = client.post(CHAT, chat).json()["choices"][0]["message"]["content"]
    assert told(client, asked(messages=[USER, begun], max_tokens=9))["content"] == [{"type": "text", "text": expected}]


def test_drafts_change_nothing(client: Any) -> None:
    for sampled in ({}, {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 5}):
        drafted, plain = (told(client, asked(**sampled, max_tokens=40, draft=draft)) for draft in (True, False))
        assert drafted == plain


@pytest.mark.parametrize("family", sorted(CALLS))
def test_a_call_is_a_block(tool_vocabularies: dict[str, Path], family: str) -> None:
    with scripted_client(tool_vocabularies[family], *CALLS[family], ENDS[family]) as (client, _):
        message = told(client, asked(tools=TOOLS, thinking={"type": "adaptive"}))
        thoughts = [{"type": "thinking", "thinking": "hm", "signature": ""}] if family == "harmony" else []
        assert message["content"] == [*thoughts, {"type": "tool_use", "name": "weather", "input": ARGUMENTS}]
        assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("family", ["hermes", "tags", "gemma"])
def test_several_calls_after_some_words(tool_vocabularies: dict[str, Path], family: str) -> None:
    parts = ("I look.\n", *CALLS[family], *CALLS[family], ENDS[family])
    with scripted_client(tool_vocabularies[family], *parts) as (client, _):
        call = {"type": "tool_use", "name": "weather", "input": ARGUMENTS}
        assert told(client, asked(tools=TOOLS))["content"] == [{"type": "text", "text": "I look."}, call, call]
        one = asked(tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        message = told(client, one)
        assert message["content"] == [{"type": "text", "text": "I look."}, call]
        assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


@pytest.mark.parametrize("family", ["hermes", "tags", "harmony", "llama"])
@pytest.mark.parametrize(
    ("choice", "names"), [({"type": "any"}, {"weather", "now"}), ({"type": "tool", "name": "now"}, {"now"})]
)
def test_a_call_that_must_be_is(tool_vocabularies: dict[str, Path], family: str, choice: Any, names: set[str]) -> None:
    with scripted_client(tool_vocabularies[family], "I would rather talk.", "<|im_end|>") as (client, _):
        (block, *_) = told(client, asked(tools=TOOLS, tool_choice=choice))["content"]
        assert block["type"] == "tool_use"
        assert block["name"] in names


def test_no_tools_for_tool_choice_none(tool_vocabularies: dict[str, Path]) -> None:
    with scripted_client(tool_vocabularies["hermes"], *CALLS["hermes"], "<|im_end|>") as (client, _):
        message = told(client, asked(tools=TOOLS, tool_choice={"type": "none"}))
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["stop_reason"] == "end_turn"


def test_arguments_are_streamed(tool_vocabularies: dict[str, Path]) -> None:
    with scripted_client(tool_vocabularies["hermes"], *CALLS["hermes"], "<|im_end|>") as (client, _):
        events = messages_events(client, asked(tools=TOOLS, draft=False))
        parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
        assert len(parts) > 5
        assert json.loads("".join(parts)) == ARGUMENTS


def test_a_call_that_is_cut_is_told_as_far_as_it_came(tool_vocabularies: dict[str, Path]) -> None:
    with scripted_client(tool_vocabularies["hermes"], *CALLS["hermes"], "<|im_end|>") as (client, _):
        message = client.post(MESSAGES, asked(tools=TOOLS, max_tokens=40)).json()
        (block,) = message["content"]
        assert message["stop_reason"] == "max_tokens"
        assert '{"city": "Oslo", "days": 2}'.startswith(block["input"]["INVALID_JSON"])


@pytest.mark.parametrize("family", ["hermes", "tags"])
def test_calls_and_results_go_into_the_prompt(tool_vocabularies: dict[str, Path], family: str) -> None:
    """As the same conversation in OpenAI's words does."""
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": json.dumps(ARGUMENTS)}}
    theirs = [
        {"role": "system", "content": "One.\n\nTwo."},
        USER,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "error"},
        {"role": "user", "content": "So?\n\nWell?"},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
        {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Well?"},
    ]
    answer = [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": ARGUMENTS},
    ]
    ours = [USER, {"role": "assistant", "content": answer}, {"role": "user", "content": results}]
    system = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    tools = [
        {"type": "function", "function": {"name": "weather", "description": "What it is like", "parameters": SCHEMA}},
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
    ]
    with scripted_client(tool_vocabularies[family], "It will.", ENDS[family]) as (client, loaded):
        seen: list[list[int]] = []
        prefill = loaded.pair.prefill

        def seen_first(ids: Sequence[int], *rest: Any) -> int:
            seen.append(list(ids))
            return prefill(ids, *rest)

        loaded.pair.prefill = seen_first  # type: ignore[method-assign,assignment]
        client.post(CHAT, {"messages": theirs, "tools": tools, "max_tokens": 9, "temperature": 0})
        message = client.post(MESSAGES, asked(messages=ours, system=system, tools=TOOLS)).json()
        assert message["content"] == [{"type": "text", "text": "It will."}]
        assert seen[0] == seen[1]
        body = {"model": "", "messages": ours, "system": system, "tools": TOOLS}
        assert client.post(f"{MESSAGES}/count_tokens", body).json() == {"input_tokens": len(seen[1])}


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {"type": "enabled", "budget_tokens": 2000}])
def test_a_model_thinks_where_it_is_asked_to(vocabularies: dict[str, Path], thinking: Any) -> None:
    thinks = thinking is not None and thinking["type"] == "enabled"
    said = ("<think>", "\nhm\n", "</think>", "\n\nYes.") if thinks else ("Yes.",)
    with scripted_client(vocabularies["qwen3"], *said, "<|im_end|>") as (client, _):
        message = told(client, asked(thinking=thinking))
        thoughts = [{"type": "thinking", "thinking": "hm", "signature": ""}] if thinks else []
        assert message["content"] == [*thoughts, {"type": "text", "text": "Yes."}]
        assert message["stop_reason"] == "end_turn"
        counted = client.post(f"{MESSAGES}/count_tokens", asked(thinking=thinking)).json()["input_tokens"]
        assert counted == message["usage"][0]


def test_thoughts_of_before_go_back_to_the_template(vocabularies: dict[str, Path]) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    with scripted_client(vocabularies["qwen3"], "s.", "<|im_end|>") as (client, _):
        sizes = []
        for content in ("Ye", [thought, {"type": "text", "text": "Ye"}]):
            messages = [USER, {"role": "assistant", "content": content}]
            body = asked(messages=messages, thinking={"type": "enabled", "budget_tokens": 2000})
            sizes.append(client.post(f"{MESSAGES}/count_tokens", body).json()["input_tokens"])
            assert client.post(MESSAGES, body).json()["content"] == [{"type": "text", "text": "s."}]
        assert sizes[1] > sizes[0] + 2


def test_an_answer_in_a_form(client: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    config = {"effort": "xhigh", "format": {"type": "json_schema", "schema": schema}}
    message = told(client, asked(max_tokens=300, output_config=config))
    assert set(json.loads(message["content"][0]["text"])) == {"ok"}
