"""Chat formats of model families: thoughts are separated from the answer; effort and thinking switches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localdflash.loading.load_pair import LoadedPair
from tests.server.api.dialects import CHAT, CHATS, MESSAGES, RESPONSES
from tests.support.chat_formats import TEMPLATES
from tests.support.scripted_pair import scripted_client, spelled
from tests.support.served import Client

THINKS = {
    "harmony": ("<|channel|>", "analysis", "<|message|>", "because é", "<|end|>", "<|start|>", "assistant"),
    "qwen3": ("<think>", "\nbecause é\n", "</think>", "\n\n"),
    "qwen3.5": ("because é\n", "</think>", "\n\n"),
    "gemma": ("<|channel>", "thought\nbecause é\n", "<channel|>"),
}
SAYS = dict.fromkeys(THINKS, ("so it is.",)) | {"harmony": ("<|channel|>", "final", "<|message|>", "so it is.")}
ENDS = {"harmony": "<|return|>", "qwen3": "<|im_end|>", "qwen3.5": "<|im_end|>", "gemma": "<turn|>"}
SWITCH: dict[str, Any] = {
    CHAT.path: {"chat_template_kwargs": {"enable_thinking": True}},
    MESSAGES.path: {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    RESPONSES.path: {},
}


@contextmanager
def saying(vocabularies: dict[str, Path], family: str, *more: str) -> Iterator[tuple[Client, LoadedPair]]:
    parts = more or (*THINKS[family], *SAYS[family], ENDS[family])
    with scripted_client(vocabularies[family], *parts) as (client, loaded):
        yield client, loaded


@pytest.mark.parametrize("family", TEMPLATES)
def test_thoughts_come_apart_from_the_answer(vocabularies: dict[str, Path], family: str) -> None:
    with saying(vocabularies, family) as (client, loaded):
        for dialect in CHATS:
            reply = dialect.both(client, max_tokens=200, **SWITCH[dialect.path])
            assert (reply.thoughts, reply.text, reply.finish) == ("because é", "so it is.", "stop")
        usage = client.post(RESPONSES.path, RESPONSES.body(max_tokens=200)).json()["usage"]
        thought = len(loaded.tokenizer.encode("because é"))
        assert usage["output_tokens_details"]["reasoning_tokens"] == thought
        inside = next(place for place, part in enumerate(THINKS[family]) if "because" in part)
        most = len(spelled(loaded.tokenizer, *THINKS[family][: inside + 1])) - 3
        cut = CHAT.both(client, max_tokens=most, **SWITCH[CHAT.path])
        assert (cut.finish, cut.text) == ("length", "")
        assert "because é".startswith(cut.thoughts)
        stopped = CHAT.ask(client, stop=[" it"], logprobs=True, **SWITCH[CHAT.path])
        assert (stopped.text, stopped.finish) == ("so", "stop")
        formed = CHAT.ask(client, grammar='root ::= "yes"', **SWITCH[CHAT.path])
        assert (formed.thoughts, formed.text) == ("", "yes")


@pytest.mark.parametrize(
    ("effort", "shown"), [("none", "low"), ("minimal", "low"), ("medium", "medium"), ("high", "high")]
)
def test_the_effort_of_thinking(vocabularies: dict[str, Path], effort: str, shown: str) -> None:
    with saying(vocabularies, "harmony") as (client, _):
        told = CHAT.ask(client, max_tokens=1, reasoning_effort=effort).sizes
        assert told == CHAT.ask(client, max_tokens=1, chat_template_kwargs={"reasoning_effort": shown}).sizes
        if effort == "high":
            assert RESPONSES.ask(client, max_tokens=1, reasoning={"effort": "max"}).sizes == told
            assert MESSAGES.ask(client, max_tokens=1, output_config={"effort": "xhigh"}).sizes == told


def test_a_model_thinks_for_anthropics_clients_only_where_they_ask(vocabularies: dict[str, Path]) -> None:
    with saying(vocabularies, "qwen3", "Yes.", "<|im_end|>") as (client, _):
        sizes = {
            MESSAGES.both(client, **({"thinking": thinking} if thinking else {})).sizes[0]
            for thinking in (None, {"type": "disabled"})
        }
        thinks = MESSAGES.both(client, thinking={"type": "adaptive"}).sizes[0]
        assert (len(sizes), sizes == {thinks}) == (1, False)
