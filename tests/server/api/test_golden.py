"""What well-known clients send, as their sources say, and what they read of the answer."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.completion import complete

PREFIX, MIDDLE, SUFFIX = "class Box:\n    def add(self, a, b):\n", "        return", "\n\nbox = Box()\n"
CHUNKS = [{"text": "def add(a, b):\n    return a + b\n", "time": [1, 2], "filename": "math.py"}]


@pytest.fixture
def text(plain: LoadedPair) -> str:
    return "".join(complete(plain, PREFIX + MIDDLE, SUFFIX, 32, SamplingParams()))


# ggml-org/llama.vim autoload/llama.vim: llama#fim, s:ring_update, llama#inst, llama#inst_send


def test_llama_vim_completes(client: Any, filled: Callable[..., str]) -> None:
    fields = [
        *("content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms"),
        *("timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms"),
        *("timings/predicted_per_token_ms", "timings/predicted_per_second", "truncated", "tokens_cached"),
    ]
    told = client.post(
        "/infill",
        {
            "id_slot": 0,
            "input_prefix": PREFIX,
            "input_suffix": SUFFIX,
            "input_extra": CHUNKS,
            "prompt": MIDDLE,
            "n_predict": 32,
            "stop": [],
            "n_indent": 0,
            "top_k": 40,
            "top_p": 0.90,
            "samplers": ["top_k", "top_p", "infill"],
            "stream": False,
            "cache_prompt": True,
            "t_max_prompt_ms": 500,
            "t_max_predict_ms": 60_000,
            "response_fields": fields,
            "model": "",
        },
    )
    assert told.status_code == 200
    assert list(told.json()) == fields
    assert told.json()["content"] == filled(PREFIX + MIDDLE, SUFFIX, 32)
    assert all(isinstance(value, int | float) for name, value in told.json().items() if name.startswith("timings/"))


def test_llama_vim_warms_the_cache(client: Any) -> None:
    told = client.post(
        "/infill",
        {
            "id_slot": 0,
            "input_prefix": "",
            "input_suffix": "",
            "input_extra": CHUNKS,
            "prompt": "",
            "n_predict": 0,
            "temperature": 0.0,
            "samplers": [],
            "stream": False,
            "cache_prompt": True,
            "t_max_prompt_ms": 1,
            "t_max_predict_ms": 1,
            "response_fields": [""],
        },
    )
    assert (told.status_code, told.json()) == (200, {})


def test_llama_vim_instructs(client: Any) -> None:
    messages = [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "Add a comment."}]
    common = {"id_slot": 3, "messages": messages, "cache_prompt": True, "model": ""}
    warm = {**common, "samplers": [], "n_predict": 0, "stream": False, "response_fields": [""]}
    assert client.post("/v1/chat/completions", warm).status_code == 200
    events = client.events(
        "/v1/chat/completions",
        {**common, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"], "max_tokens": 8},
    )
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events)


# ggml-org/llama.vscode src/llama-server.ts: createRequestPayload, applyToolsTemplate, countTextTokens;
# src/language-model-token-limits.ts: isLikelyLlamaCppProvider, extractRuntimeContextSize


def test_llama_vscode_completes(client: Any) -> None:
    told = client.post(
        "/infill",
        {
            "id_slot": 0,
            "input_prefix": PREFIX,
            "input_suffix": SUFFIX,
            "input_extra": CHUNKS,
            "prompt": MIDDLE,
            "n_predict": 32,
            "n_cmpl": 3,
            "top_k": 40,
            "top_p": 0.99,
            "stream": False,
            "samplers": ["top_k", "top_p", "infill"],
            "cache_prompt": True,
            "n_indent": 4,
            "t_max_prompt_ms": 500,
            "t_max_predict_ms": 60_000,
        },
    ).json()
    assert isinstance(told["content"], str)
    assert {"prompt_ms", "predicted_ms", "predicted_n"} <= set(told["timings"])


def test_llama_vscode_counts_tokens(client: Any) -> None:
    models = client.get("/v1/models").json()["data"]
    assert isinstance(models[0]["meta"], dict)
    props = client.get("/props", params={"model": "embedded", "autoload": "false"}).json()
    assert props["default_generation_settings"]["n_ctx"] == 1024
    messages = [{"role": "user", "content": "Hello"}]
    prompt = client.post("/apply-template", {"messages": messages, "model": "embedded"}).json()["prompt"]
    tokens = client.post("/tokenize", {"content": prompt, "add_special": False, "parse_special": True}).json()["tokens"]
    told = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).json()
    assert len(tokens) == told["usage"]["prompt_tokens"]


# zed-industries/zed crates/edit_prediction/src/fim.rs: format_fim_prompt, fim_stop_tokens; open_ai_compatible.rs


def test_zed_predicts_an_edit(client: Any, text: str) -> None:
    told = client.post(
        "/v1/completions",
        {
            "model": "embedded",
            "prompt": f"<|fim_prefix|>{PREFIX + MIDDLE}<|fim_suffix|>{SUFFIX}<|fim_middle|>",
            "max_tokens": 32,
            "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"],
        },
    ).json()
    assert told["choices"][0]["text"] == text
    assert isinstance(told["id"], str)


# continuedev/continue packages/openai-adapters/src/apis/OpenAI.ts: modifyChatBody;
# core/autocomplete/templating/AutocompleteTemplate.ts: qwenCoderFimTemplate; getStopTokens.ts;
# core/llm/llms/OpenAI.ts: _legacystreamComplete; core/llm/llms/LlamaCpp.ts

CONTINUE_STOPS = [
    *("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>"),
    *("<|file_sep|>", "<|im_start|>", "<|im_end|>", "\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```"),
    *("def ", "class ", '"""#'),
]


def test_continue_chats(client: Any) -> None:
    events = client.events(
        "/v1/chat/completions",
        {
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
                {"role": "assistant", "content": " "},
                {"role": "user", "content": "Again"},
            ],
            "model": "localdflash",
            "max_tokens": 16,
            "temperature": 0.5,
            "stream_options": {"include_usage": True},
            "tools": [],
        },
    )
    assert events[-1]["usage"]["total_tokens"] > 0


def test_continue_completes(client: Any, text: str) -> None:
    prompt = f"<|fim_prefix|>{PREFIX + MIDDLE}<|fim_suffix|>{SUFFIX}<|fim_middle|>"
    expected = min((text.partition(stop)[0] for stop in CONTINUE_STOPS), key=len)
    options = {"stop": CONTINUE_STOPS, "temperature": 0}
    body = {"model": "embedded", "prompt": prompt, "max_tokens": 32, **options}
    events = client.events("/v1/completions", body)
    assert "".join(event["choices"][0]["text"] for event in events) == expected
    told = client.post("/completion", {"prompt": prompt, "stream": True, "n_predict": 32, **options}).text
    native = [json.loads(line.removeprefix("data: ")) for line in told.split("\n\n") if line]
    assert "".join(event["content"] for event in native) == expected


# Aider-AI/aider aider/models.py: Model.send_completion


@pytest.mark.parametrize("stream", [True, False])
def test_aider_edits(client: Any, stream: bool) -> None:
    messages = [
        {"role": "system", "content": "Act as an expert software developer."},
        {"role": "user", "content": "I want you to act."},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "Add a function."},
    ]
    body = {"model": "embedded", "stream": stream, "temperature": 0, "messages": messages}
    if stream:
        events = client.events("/v1/chat/completions", body)
        assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    else:
        told = client.post("/v1/chat/completions", body).json()
        assert told["choices"][0]["message"]["content"]
