"""Chats with models of each family, over the API: thoughts apart from the answer, tool calls as they were written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localdflash.loading.load_pair import LoadedPair
from tests.support.chat_formats import TEMPLATES, vocabularies
from tests.support.scripted_pair import scripted_client, spelled
from tests.support.served import Client
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "vocabularies"]

CHAT = "/v1/chat/completions"
THINKS = {
    "harmony": ("<|channel|>", "analysis", "<|message|>", "because é", "<|end|>", "<|start|>", "assistant"),
    "qwen3": ("<think>", "\nbecause é\n", "</think>", "\n\n"),
    "qwen3.5": ("because é\n", "</think>", "\n\n"),
    "gemma": ("<|channel>", "thought\nbecause é\n", "<channel|>"),
}
SAYS = dict.fromkeys(THINKS, ("so it is.",)) | {"harmony": ("<|channel|>", "final", "<|message|>", "so it is.")}
ENDS = {"harmony": "<|return|>", "qwen3": "<|im_end|>", "qwen3.5": "<|im_end|>", "gemma": "<turn|>"}
CALLS = {
    "harmony": (
        ("<|channel|>", "commentary to=functions.f ", "<|constrain|>", "json", "<|message|>", '{"a": 1}', "<|call|>"),
        '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}',
    ),
    "qwen3": (
        ("<tool_call>", '\n{"name": "f", "arguments": {"a": 1}}\n', "</tool_call>", "<|im_end|>"),
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
    ),
    "gemma": (
        ("<|tool_call>", "call:f{a:", '<|"|>', "x", '<|"|>', "}", "<tool_call|>", "<|tool_response>"),
        '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>',
    ),
}


def asked(**fields: Any) -> dict[str, Any]:
    switches = {"chat_template_kwargs": {"enable_thinking": True}}
    return {"messages": [{"role": "user", "content": "why?"}], "temperature": 0, **switches, **fields}


@contextmanager
def thinking(vocabularies: dict[str, Path], family: str, *more: str) -> Iterator[tuple[Client, LoadedPair]]:
    parts = more or (*THINKS[family], *SAYS[family], ENDS[family])
    with scripted_client(vocabularies[family], *parts) as (client, loaded):
        yield client, loaded


def told(events: Sequence[dict[str, Any]], name: str) -> str:
    return "".join(choice["delta"].get(name, "") for event in events for choice in event["choices"])


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_thoughts_come_apart_from_the_answer(vocabularies: dict[str, Path], family: str) -> None:
    with thinking(vocabularies, family) as (client, _):
        (choice,) = client.post(CHAT, asked()).json()["choices"]
        assert choice["message"] == {
            "role": "assistant",
            "content": "so it is.",
            "refusal": None,
            "reasoning_content": "because é",
        }
        assert choice["finish_reason"] == "stop"
        events = client.events(CHAT, asked())
        assert (told(events, "reasoning_content"), told(events, "content")) == ("because é", "so it is.")


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_both_may_be_asked_for_as_one_text(vocabularies: dict[str, Path], family: str) -> None:
    text = "<think>\nbecause é\n</think>\n\nso it is."
    with thinking(vocabularies, family) as (client, _):
        body = asked(reasoning_format="none")
        (choice,) = client.post(CHAT, body).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
        events = client.events(CHAT, {**body, "steps": True})
        assert told(events, "content") == text
        sizes = [size for event in events if "step" in event for size in event["step"]["sizes"]]
        assert sum(sizes) == len(text.encode())


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_an_answer_that_is_cut_while_it_thinks_has_thoughts_alone(vocabularies: dict[str, Path], family: str) -> None:
    parts = THINKS[family]
    inside = next(place for place, part in enumerate(parts) if "because" in part)
    with thinking(vocabularies, family) as (client, loaded):
        most = len(spelled(loaded.tokenizer, *parts[: inside + 1])) - 3
        (choice,) = client.post(CHAT, asked(max_tokens=most)).json()["choices"]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
        assert "because é".startswith(choice["message"]["reasoning_content"])


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_a_stop_string_is_found_in_the_answer(vocabularies: dict[str, Path], family: str) -> None:
    with thinking(vocabularies, family) as (client, _):
        told = client.post(CHAT, asked(stop=[" it"], logprobs=True)).json()
        (choice,) = told["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("so", "stop")


@pytest.mark.parametrize("family", sorted(CALLS))
def test_a_tool_call_is_passed_through(vocabularies: dict[str, Path], family: str) -> None:
    parts, text = CALLS[family]
    with thinking(vocabularies, family, *THINKS[family], *parts) as (client, _):
        (choice,) = client.post(CHAT, asked()).json()["choices"]
        assert choice["message"]["reasoning_content"] == "because é"
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_the_history_is_read_without_thoughts(vocabularies: dict[str, Path], family: str) -> None:
    one_text = {"role": "assistant", "content": "<think>\nbecause\n</think>\n\nso"}
    apart = {"role": "assistant", "content": "so", "reasoning_content": "because"}
    without = {"role": "assistant", "content": "so"}
    again = {"role": "user", "content": "and?"}
    with thinking(vocabularies, family) as (client, _):
        prompts = [
            client.post("/apply-template", {"messages": [{"role": "user", "content": "why?"}, one, again]}).json()
            for one in (one_text, apart, without)
        ]
        assert prompts[0] == prompts[1] == prompts[2]


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_an_answer_goes_on_in_its_thoughts(vocabularies: dict[str, Path], family: str) -> None:
    begun = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "<think>\nbecau"}]
    rest = {"harmony": THINKS["harmony"][4:]}.get(family, THINKS[family][-2:])
    rest = ("\n", "<channel|>") if family == "gemma" else rest
    with thinking(vocabularies, family, "se", *rest, *SAYS[family], ENDS[family]) as (client, _):
        body = asked(messages=begun, continue_final_message=True)
        events = client.events(CHAT, body)
        assert told(events, "content") == "so it is."
        assert told(events, "reasoning_content").startswith("se")
        (choice,) = client.post(CHAT, body).json()["choices"]
        assert choice["message"]["content"] == "so it is."


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_a_schema_is_answered_without_thoughts(vocabularies: dict[str, Path], family: str) -> None:
    with thinking(vocabularies, family) as (client, _):
        (choice,) = client.post(CHAT, asked(grammar='root ::= "yes"')).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": "yes", "refusal": None}


@pytest.mark.parametrize(
    ("effort", "shown"), [("none", "low"), ("minimal", "low"), ("medium", "medium"), ("high", "high")]
)
def test_the_effort_of_thinking(vocabularies: dict[str, Path], effort: str, shown: str) -> None:
    with thinking(vocabularies, "harmony") as (client, _):
        sizes = {}
        for body in ({"reasoning_effort": effort}, {"chat_template_kwargs": {"reasoning_effort": shown}}):
            told = client.post(CHAT, {"messages": [{"role": "user", "content": "why?"}], **body, "max_tokens": 1})
            sizes[str(body)] = told.json()["usage"]["prompt_tokens"]
        assert len({*sizes.values()}) == 1
        bare = client.post(CHAT, {"messages": [{"role": "user", "content": "why?"}], "reasoning_effort": "ultra"})
        assert bare.status_code == 400
