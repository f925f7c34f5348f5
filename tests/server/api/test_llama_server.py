"""llama-server's API, with the requests of llama.vim, llama.vscode, Zed and Continue taken from their sources."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.completion_request import prepare_middle
from localdflash.server.api.generation import _IndentLimit, params_of
from localdflash.server.api.llama_server_api import _infill
from localdflash.server.api.schemas import Extra, InfillRequest
from localdflash.text.fim_formats import FORMATS
from localdflash.text.grammar import Grammars
from tests.server.api.dialects import AFTER, BEFORE, CHAT, COMPLETIONS, INFILL, MESSAGES, RAW, plain_events
from tests.server.api.test_streams import ENDLESS, LONG, send
from tests.support.scripted_pair import scripted_client


def infilled(client: Any, **change: Any) -> dict[str, Any]:
    told: dict[str, Any] = client.post("/infill", INFILL.body(**{"max_tokens": 40, **change})).json()
    return told


def test_stop_types(client: Any) -> None:
    assert infilled(client, max_tokens=3)["stop_type"] == "limit"
    assert infilled(client, grammar='root ::= "x"')["stop_type"] == "eos"
    assert infilled(client, stop=["nowhere at all"])["stopping_word"] == ""
    late = infilled(client, max_tokens=400, t_max_predict_ms=0.001)
    assert 0 < late["tokens_predicted"] < 100
    assert late["stop_type"] == "limit"
    before = {"input_prefix": "def add(a, b):\n    return", "input_suffix": "\n", "stop": ["return"], "max_tokens": 3}
    told = infilled(client, **before)
    assert told["content"].strip(), "a stop string is not looked for before the cursor"
    assert told["stop_type"] != "word"


@pytest.mark.parametrize("marker", ["<|im_start|>", "<|im_end|>"])
def test_a_special_token_as_a_stop_string(tool_vocabularies: dict[str, Path], marker: str) -> None:
    """The model's own end token stays its own end."""
    own = marker == "<|im_end|>"
    with scripted_client(tool_vocabularies["hermes"], "Hello", marker, "and more") as (client, _):
        raw = client.post("/completion", RAW.body(stop=[marker])).json()
        assert (raw["stop_type"], raw["stopping_word"]) == (("eos", "") if own else ("word", marker))
        message = client.post(MESSAGES.path, MESSAGES.body(stop=[marker])).json()
        ended = ("end_turn", None) if own else ("stop_sequence", marker)
        assert (message["stop_reason"], message["stop_sequence"]) == ended
        assert raw["content"] == message["content"][0]["text"] == "Hello"


def test_other_files_stand_at_the_head_of_a_model_with_separators(
    plain: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "fim_format", lambda: FORMATS["qwen"])
    extra = [Extra("a = 1\n", "a.py"), Extra("value = 12\n" * 200, "b\nc.py"), Extra("d = 4\n", "d.py")]
    body = InfillRequest(input_prefix="def f(", input_suffix="):\n", input_extra=extra)
    made = _infill(plain, InfillPlanner(plain), body, Grammars(plain.tokenizer, plain.vocab_size))
    spelled = b"".join(plain.tokenizer.piece(token, special=True) for token in made.requests[0].ids).decode()
    assert spelled.startswith("<|repo_name|>repository\n<|file_sep|>b c.py\nvalue = 12\n")  # the last matter most
    assert "12\n<|file_sep|>d.py\nd = 4\n<|file_sep|>current\n<|fim_prefix|>" in spelled
    assert len(made.requests[0].ids) < plain.context - 128
    assert not made.truncated


def expected_indented(text: str, least: int) -> str:
    """Return the lines before the first one that is less indented (oracle)."""
    first, *rest = text.split("\n")
    kept = [first]
    for line in rest:
        if line.strip(" \t") and len(line) - len(line.lstrip(" \t")) < least:
            break
        kept.append(line)
    return "\n".join(kept)


@given(st.lists(st.text(alphabet="a \t\n", max_size=6), max_size=8), st.integers(0, 4))
def test_indentation_is_seen_however_the_text_comes(parts: list[str], least: int) -> None:
    lines = _IndentLimit(least)
    text = "".join(part if lines.ended else lines.push(part) for part in parts if not lines.ended)
    text += lines.finish()
    assert text == expected_indented("".join(parts), least)


def test_tokens_there_and_back(client: Any) -> None:
    text = "def f(x):\n    return 'é漢😀'\n"
    tokens = client.post("/tokenize", {"content": text}).json()["tokens"]
    assert client.post("/detokenize", {"tokens": tokens}).json() == {"content": text}
    pieces = client.post("/tokenize", {"content": "hé", "with_pieces": True}).json()["tokens"]
    spelled = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert spelled.decode() == "hé"
    marked = client.post("/tokenize", {"content": "<|im_end|>"}).json()["tokens"]
    assert len(marked) == 1
    assert len(client.post("/tokenize", {"content": "<|im_end|>", "parse_special": False}).json()["tokens"]) > 1
    assert client.post("/detokenize", {"tokens": marked}).json() == {"content": "<|im_end|>"}
    vocabulary = client.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    assert client.post("/detokenize", {"tokens": [vocabulary - 1]}).status_code == 200
    assert client.post("/detokenize", {"tokens": [vocabulary]}).status_code == 400


def test_a_slot_reports_its_request(live: Any) -> None:
    with live.client() as client:
        (idle,) = client.get("/slots").json()
        assert (idle["id"], idle["n_ctx"], idle["is_processing"], idle["speculative"]) == (0, 1024, False, True)
        assert client.get("/slots?fail_on_no_slot=1").status_code == 200
        with send(live, CHAT.path, {**LONG, "max_tokens": 900, "stream": True, "grammar": ENDLESS}):
            live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
            (busy,) = client.get("/slots").json()
            (token,) = busy["next_token"]
            assert (busy["is_processing"], busy["params"]["temperature"]) == (True, 3.0)
            assert token["n_decoded"] + token["n_remain"] == busy["params"]["n_predict"] <= 900
            assert token["has_next_token"]
            full = client.get("/slots?fail_on_no_slot=1")
            assert (full.status_code, full.json()["error"]["code"]) == (503, "queue_full")
            assert "Write a long program" not in client.get("/slots").text
    live.until_idle()


# ggml-org/llama.vim autoload/llama.vim: llama#fim, s:ring_update, llama#inst_send; llama.vscode src/llama-server.ts

CHUNKS = [{"text": "def add(a, b):\n    return a + b\n", "time": [1, 2], "filename": "math.py"}]
MIDDLE = "        return"
VIM = {
    "id_slot": 0,
    "input_prefix": "class Box:\n    def add(self, a, b):\n",
    "input_suffix": AFTER,
    "input_extra": CHUNKS,
    "prompt": MIDDLE,
    "stop": [],
    "n_indent": 0,
    "top_k": 40,
    "top_p": 0.90,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 60_000,
}


def test_llama_vim_and_llama_vscode_complete(client: Any, filled: Callable[..., str]) -> None:
    fields = [
        *("content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms"),
        *("timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms"),
        *("timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"),
    ]
    asked = [*fields, "nothing", "content/deeper", ""]
    told = client.post("/infill", {**VIM, "n_predict": 32, "response_fields": asked, "model": ""}).json()
    assert list(told) == fields
    assert told["content"] == filled(str(VIM["input_prefix"]) + MIDDLE, AFTER, 32)
    assert all(isinstance(value, int | float) for name, value in told.items() if name.startswith("timings/"))
    told = client.post("/infill", {**VIM, "n_predict": 32, "n_cmpl": 3, "n_indent": 4}).json()
    assert {"prompt_ms", "predicted_ms", "predicted_n"} <= set(told["timings"])
    warm = {**VIM, "input_prefix": "", "input_suffix": "", "prompt": "", "samplers": [], "n_predict": 0}
    assert client.post("/infill", {**warm, "response_fields": [""]}).json() == {}


# continuedev/continue core/autocomplete: AutocompleteTemplate.ts, getStopTokens.ts; core/llm/llms/{OpenAI,LlamaCpp}.ts

CONTINUE_STOPS = [
    *("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
    *("<|file_sep|>", "<|im_start|>", "<|im_end|>", "\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```"),
    *("def ", "class ", '"""#'),
]


# zed-industries/zed crates/edit_prediction/src/fim.rs: format_fim_prompt, fim_stop_tokens
ZED_STOPS = ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]


def test_zed_and_continue_complete(client: Any, plain: LoadedPair) -> None:
    prompt = f"<|fim_prefix|>{BEFORE}<|fim_suffix|>{AFTER}<|fim_middle|>"
    whole = answer_directly(plain, prepare_middle(plain, BEFORE, AFTER, 32, SamplingParams())).text
    assert COMPLETIONS.both(client, prompt=prompt, stop=ZED_STOPS).text == whole
    expected = min((whole.partition(stop)[0] for stop in CONTINUE_STOPS), key=len)
    assert COMPLETIONS.both(client, prompt=prompt, stop=CONTINUE_STOPS).text == expected
    assert RAW.both(client, prompt=prompt, stop=CONTINUE_STOPS).text == expected


def test_samplers_that_are_not_listed_are_off() -> None:
    """llama.vim lists min_p and temperature for instructions, and `infill` for completions."""
    asked: dict[str, Any] = {"temperature": 0.1, "min_p": 0.1, "top_k": 5, "top_p": 0.5, "presence_penalty": 1.0}
    asked["repeat_penalty"] = 1.1
    whole = SamplingParams(0.1, 5, 0.5, 0.1, 1.1, presence_penalty=1.0)
    for samplers, params in (
        (None, whole),
        (["top_k", "top_p", "infill"], whole),
        (["min_p", "temperature"], SamplingParams(0.1, min_p=0.1)),
        (["penalties", "top_k"], SamplingParams(1.0, 5, repetition_penalty=1.1, presence_penalty=1.0)),
        ([], SamplingParams(1.0)),
    ):
        assert params_of(InfillRequest(**asked | {"samplers": samplers}), 0.0) == params
    assert params_of(InfillRequest(samplers=["top_k", "infill"]), 0.0, {"top_p": 0.9}) == SamplingParams(top_p=0.9)


def test_repeat_last_n_limits_the_penalties(client: Any) -> None:
    asked: dict[str, Any] = {"repeat_penalty": 1.5, "presence_penalty": 1.0}
    for count, window, penalties in (
        (None, 256, (1.5, 1.0)),
        (8, 8, (1.5, 1.0)),
        (-1, 1024, (1.5, 1.0)),
        (0, 0, (1, 0)),
    ):
        told = infilled(client, max_tokens=1, repeat_last_n=count, **asked)["generation_settings"]
        assert told["repeat_last_n"] == window
        assert (told["repeat_penalty"], told["presence_penalty"]) == penalties


def test_return_tokens(client: Any) -> None:
    """A stream has the same tokens, even those whose text is held back because a stop string begins with it."""
    body = {"prompt": "def add(a, b):\n    return", "n_predict": 8, "temperature": 0}
    plain = client.post("/completion", body).json()
    body["stop"] = [f"{plain['content']}!"]
    told = client.post("/completion", {**body, "return_tokens": True}).json()
    events = plain_events(client.post("/completion", {**body, "return_tokens": True, "stream": True}).text)
    assert plain["tokens"] == []
    assert len(told["tokens"]) == told["tokens_predicted"] > 0
    assert client.post("/detokenize", {"tokens": told["tokens"]}).json()["content"].startswith(told["content"])
    assert [token for event in events for token in event["tokens"]] == told["tokens"]


@pytest.mark.parametrize("path", ["/completion", CHAT.path, "/v1/completions"])
def test_timings_per_token(client: Any, path: str) -> None:
    prompt = {"messages": [{"role": "user", "content": "Hello"}]} if path == CHAT.path else {"prompt": "def"}
    for asked in (True, False):
        body = {**prompt, "n_predict": 8, "temperature": 0, "stream": True, "timings_per_token": asked}
        text = client.post(path, body).text
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        told = [event for event in events if event.get("content") or any(map(_has_text, event.get("choices", ())))]
        assert told
        assert all(("timings" in event) == asked for event in told)
        assert not asked or all(event["timings"]["predicted_n"] > 0 for event in told)


@pytest.mark.parametrize("path", ["/completion", CHAT.path, "/v1/completions"])
@pytest.mark.parametrize("seconds", [0.0, 100.0])
def test_progress_of_a_prefill(client: Any, path: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream reports it before the text: at the start, then at most once in a while, and at the end."""
    monkeypatch.setattr("localdflash.server.answer_stream.PROGRESS_SECONDS", seconds)
    lines = f"{seconds} {path}\n" + "x = 1\n" * 150
    prompt = {"messages": [{"role": "user", "content": lines}]} if path == CHAT.path else {"prompt": lines}
    body = {**prompt, "n_predict": 4, "temperature": 0, "return_progress": True}
    events = plain_events(client.post(path, {**body, "stream": True}).text.removesuffix("data: [DONE]\n\n"))
    told = [event.get("prompt_progress") for event in events]
    progress = list(filter(None, told))
    first, last = progress[0], progress[-1]
    assert (first["processed"], last["processed"]) == (first["cache"], last["total"])
    assert last["total"] > 500
    assert last["time_ms"] >= first["time_ms"] == 0
    assert all(one["cache"] == first["cache"] and one["total"] == last["total"] for one in progress)
    assert (len(progress) > 2) == (seconds == 0)
    is_text = [bool(event.get("content") or any(map(_has_text, event.get("choices", ())))) for event in events]
    assert is_text.index(True) > told.index(last)
    assert not any(told[told.index(last) + 1 :])
    assert "prompt_progress" not in client.post(path, body).text
    assert "prompt_progress" not in client.post(path, {**body, "stream": True, "return_progress": False}).text


def _has_text(choice: Any) -> bool:
    return bool(choice.get("text") or choice.get("delta", {}).get("content"))


def test_paths_without_v1_and_counts(client: Any) -> None:
    """Other programs leave out /v1."""
    chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
    assert client.post("/chat/completions", chat).json()["object"] == "chat.completion"
    assert client.post("/completions", {"prompt": "x", "max_tokens": 2}).json()["object"] == "text_completion"
    counted = client.post("/v1/chat/completions/input_tokens", chat).json()
    assert counted["input_tokens"] == client.post("/apply-template", {**chat, "count": True}).json()["tokens"]
    for model in ("", "?model=embedded"):
        assert client.get(f"/props{model}").json()["default_generation_settings"]["params"]["temperature"] == 1.0
    assert client.get("/props?model=qwen3-8b").status_code == 404


def test_a_plain_client_reads_that_its_body_is_too_large(live: Any) -> None:
    with live.client() as client:
        told = client.post("/completion", content=b" " * (20 << 20), headers={"content-type": "application/json"})
    assert told.status_code == 413
