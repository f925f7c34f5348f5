"""Requests of coding agents in their default settings. Each test names the client whose request it repeats."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api import agent_bodies as bodies
from localdflash.server.api import anthropic_api
from localdflash.server.api.chat_request import AnswerPrompt, prompt_of
from localdflash.server.api.responses_api import messages_of_items
from localdflash.server.worker import PairWorker
from tests.server.api.dialects import CHATS, MESSAGES, RESPONSES, Dialect, response_events
from tests.support.scripted_pair import scripted_client

Json = dict[str, Any]
# Claude Code 2.1.197: the first block of its system prompt; cch and the end of the version differ in every request.
BILLING = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=sdk-cli; cch={};"
REMINDER = "Available agents: none."


def claude_code(billing: str = BILLING.format("7b4", "eb6c6"), **more: Any) -> Json:
    return {
        "model": "claude-sonnet-4-6",
        "max_tokens": 64,
        "system": [{"type": "text", "text": billing}, {"type": "text", "text": "You help."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "system", "content": [{"type": "text", "text": REMINDER}]},
        ],
        **more,
    }


def prompt(loaded: LoadedPair, body: Json) -> AnswerPrompt:
    """Return the prompt of a request to /v1/messages."""
    return prompt_of(loaded, anthropic_api.chat_request(msgspec.convert(body, bodies.MessagesRequest)))


@pytest.mark.parametrize("family", ["qwen3", "gemma", "refusing"])
def test_a_system_message_between_others(vocabularies: dict[str, Path], family: str) -> None:
    """Claude Code, beta mid-conversation-system-2026-04-07. Gemma's template drops the message, others refuse it."""
    with scripted_client(vocabularies["gemma" if family == "gemma" else "qwen3"], "Hi.", "<|im_end|>") as (
        client,
        loaded,
    ):
        if family == "refusing":  # as Qwen3.5's
            template = loaded.tokenizer.chat_template() or ""
            refuse = (
                "{%- for m in messages[1:] if m.role == 'system' %}{{ raise_exception('system first') }}{% endfor -%}"
            )
            loaded.tokenizer.chat_template = lambda: refuse + template  # type: ignore[method-assign]
        text = prompt(loaded, claude_code()).text
        assert REMINDER in text
        assert ("<|im_start|>system\n" + REMINDER in text) == (family == "qwen3")
        assert ("Hello\n\n<system-reminder>\n" + REMINDER in text) == (family != "qwen3")
        assert client.post(MESSAGES.path, claude_code()).status_code == 200
        counted = {name: value for name, value in claude_code().items() if name != "max_tokens"}
        told = client.post("/v1/messages/count_tokens", counted).json()
        assert told == {"input_tokens": len(prompt(loaded, claude_code()).encode())}


def test_the_billing_header_is_not_in_the_prompt(vocabularies: dict[str, Path]) -> None:
    """Claude Code. The header stands in a block, or begins a text."""
    with scripted_client(vocabularies["qwen3"], "Hi.", "<|im_end|>") as (_, loaded):
        first, second = (
            prompt(loaded, claude_code(BILLING.format(*two))).text for two in (("7b4", "e1"), ("76c", "f2"))
        )
        joined = claude_code(system=BILLING.format("1ab", "03") + "You help.")
        assert first == second == prompt(loaded, joined).text
        assert "You help." in first
        assert "cc_version" not in first


def test_tools_of_anthropic_are_left_out_with_a_warning(vocabularies: dict[str, Path]) -> None:
    """Anthropic's client: tools that only Anthropic's models know have a type and no schema."""
    typed = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}]
    own = {"name": "read", "description": "Read a file", "input_schema": {"type": "object"}}
    with scripted_client(vocabularies["qwen3"], "Hi.", "<|im_end|>") as (client, loaded):
        assert prompt(loaded, claude_code(tools=[*typed, own])).text == prompt(loaded, claude_code(tools=[own])).text
        for stream in (False, True):
            told = client.post(MESSAGES.path, claude_code(tools=[*typed, own], stream=stream))
            assert told.status_code == 200
            assert told.headers["warning"] == '299 localdflash "tools left out: web_search, bash"'
        assert "warning" not in client.post(MESSAGES.path, claude_code(tools=[own])).headers


def test_a_text_document_is_read(vocabularies: dict[str, Path]) -> None:
    """Claude Code sends a file that the user mentions as a document."""
    source = {"type": "text", "media_type": "text/plain", "data": "Contents."}
    document = {"type": "document", "source": source, "title": "notes.txt"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [document]}
    with scripted_client(vocabularies["qwen3"], "Hi.", "<|im_end|>") as (_, loaded):
        for block in (document, result):
            text = prompt(loaded, claude_code(messages=[{"role": "user", "content": [block]}])).text
            assert "notes.txt\n\nContents." in text


def test_tools_in_namespaces_are_called_by_both_names(tool_vocabularies: dict[str, Path]) -> None:
    """Codex 0.171 sends tools of the types function, namespace and web_search, and gets a call's namespace back."""
    member = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    tools = [{"type": "namespace", "name": "mcp__city", "tools": [member]}, {"type": "web_search"}]
    call = "<tool_call>", '\n{"name": "mcp__city__weather", "arguments": {}}\n', "</tool_call>", "<|im_end|>"
    with scripted_client(tool_vocabularies["hermes"], *call) as (client, _):
        body = RESPONSES.body(store=True, max_tokens=200) | {"tools": tools}
        told = client.post(RESPONSES.path, body)
        assert told.headers["warning"] == '299 localdflash "tools left out: web_search"'
        assert told.json()["store"] is False
        for output in (
            told.json()["output"],
            response_events(client.post(RESPONSES.path, {**body, "stream": True}).text)[-1]["response"]["output"],
        ):
            (item,) = output
            assert (item["type"], item["name"], item["namespace"]) == ("function_call", "weather", "mcp__city")
        result = {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
        again = {**body, "input": [{"role": "user", "content": "Rain?"}, item, result]}
        assert client.post(RESPONSES.path, again).status_code == 200


def test_a_picture_of_a_tool_becomes_a_note() -> None:
    """Codex's `view_image` returns one."""
    picture = {"type": "input_image", "image_url": "data:image/png;base64,eA=="}
    output = [{"type": "input_text", "text": "a.png: "}, picture]
    items: list[Json] = [{"type": "function_call_output", "call_id": "1", "output": output}]
    assert messages_of_items(items)[-1].content == "a.png: [a picture, which this model cannot see]"


@pytest.mark.parametrize("dialect", CHATS, ids=lambda dialect: dialect.path)
def test_what_is_recommended_for_the_model_is_the_default(
    client: Any, worker: PairWorker, monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    """opencode, pi, aider and Codex set no temperature; without one an answer was sampled at 1."""
    assert worker.loaded
    stream, params = worker.stream, SamplingParams()

    def recorded(request: Request, *rest: Any, **more: Any) -> Any:
        nonlocal params
        params = request.params
        return stream(request, *rest, **more)

    monkeypatch.setattr(worker.loaded, "sampling", {"temperature": 0.2, "top_k": 20, "top_p": 0.9})
    monkeypatch.setattr(worker, "stream", recorded)
    changes: list[dict[str, Any]] = [{}, {"temperature": 0.7}, {"top_p": 1.0}]
    for given in changes:
        body = {**dialect.body(max_tokens=2), "temperature": None, **given}
        assert client.post(dialect.path, body).status_code == 200
        assert params == replace(SamplingParams(temperature=0.2, top_k=20, top_p=0.9), **given)
