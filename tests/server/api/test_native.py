import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.generation import _IndentLimit
from localdflash.server.api.llama_server_api import _infill
from localdflash.server.api.schemas import Extra, InfillRequest
from localdflash.text.fim import FORMATS
from localdflash.text.grammar import Grammars

PREFIX, SUFFIX = "class Box:\n    def add(self, a, b):\n        ", "\n\nbox = Box()\n"
INFILL = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 40}


def events(client: Any, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    parts = client.post(path, {**body, "stream": True}).text.split("\n\n")
    assert parts[-1] == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]


def test_what_is_filled_in(client: Any, filled: Callable[..., str]) -> None:
    text = filled(PREFIX, SUFFIX, 40)
    told = client.post("/infill", INFILL).json()
    assert told["content"] == text
    assert told["tokens_predicted"] <= 40
    assert told["tokens_cached"] == told["tokens_evaluated"] + told["tokens_predicted"]
    assert (told["stop"], told["truncated"], told["model"]) == (True, False, "embedded")
    streamed = events(client, "/infill", INFILL)
    assert "".join(event["content"] for event in streamed) == text
    assert [event["stop"] for event in streamed] == [False] * (len(streamed) - 1) + [True]
    changing = ("content", "timings", "tokens_predicted", "tokens_cached")  # a draft may reach beyond the end
    assert {k: v for k, v in streamed[-1].items() if k not in changing} == {
        k: v for k, v in told.items() if k not in changing
    }


def test_the_prompt_stands_after_the_prefix(client: Any) -> None:
    whole = client.post("/infill", INFILL).json()
    cut = client.post("/infill", {**INFILL, "input_prefix": PREFIX[:-8], "prompt": PREFIX[-8:]}).json()
    assert cut["content"] == whole["content"]


@pytest.mark.parametrize(
    ("change", "kind"),
    [({"n_predict": 3}, "limit"), ({"stop": ["never this", None]}, "word"), ({"stop": ["nowhere at all"]}, None)],
)
def test_why_it_stopped(client: Any, change: dict[str, Any], kind: str | None) -> None:
    whole = client.post("/infill", INFILL).json()
    word = whole["content"][6:9]
    change = {name: [given or word for given in value] if name == "stop" else value for name, value in change.items()}
    told = client.post("/infill", {**INFILL, **change}).json()
    assert told["stop_type"] == (kind or whole["stop_type"])
    if kind == "word":
        assert told["stopping_word"] == word
        assert told["content"] == whole["content"].partition(word)[0]
    else:
        assert told["stopping_word"] == ""


def test_only_the_fields_that_were_asked_for(client: Any) -> None:
    fields = ["content", "timings/prompt_n", "truncated", "tokens_cached", "nothing", "content/deeper", ""]
    told = client.post("/infill", {**INFILL, "response_fields": fields}).json()
    assert set(told) == {"content", "timings/prompt_n", "truncated", "tokens_cached"}
    assert client.post("/infill", {**INFILL, "response_fields": [""]}).json() == {}


def test_a_prompt_that_does_not_fit_is_cut_around_the_cursor(client: Any) -> None:
    line = "value = compute(value)\n"
    told = client.post("/infill", {**INFILL, "input_prefix": line * 500, "input_suffix": line * 500}).json()
    assert told["truncated"] is True
    assert 700 < told["tokens_evaluated"] <= 1024 - 128  # room is kept for what will be typed, and for a longer answer


def test_the_next_key_computes_only_what_is_new(client: Any) -> None:
    body = {**INFILL, "input_prefix": "# typed key by key\n" * 30, "input_suffix": SUFFIX * 10, "n_predict": 4}
    for typed in ("value", "value =", "value = 1"):
        told = client.post("/infill", {**body, "prompt": typed}).json()
    assert told["timings"]["prompt_n"] <= 4


# Healing and stopping, as /complete has them


def test_a_word_begun_is_spelled_by_the_model(client: Any, filled: Callable[..., str]) -> None:
    before = "def add(first, second):\n    retu"
    told = client.post("/infill", {"input_prefix": before, "input_suffix": "\n", "n_predict": 12}).json()
    assert told["content"] == filled(before, "\n", 12)
    assert told["content"].startswith("rn ")
    assert told["tokens_predicted"] > 0


@pytest.mark.parametrize(("before", "after"), [("x = [1, 2, ", "]\ny = 2\n"), ("x = f(a)", "\ny = 2\n")])
def test_a_text_ends_where_the_code_does(before: str, after: str, client: Any) -> None:
    for seed in range(4):
        body = {"input_prefix": before, "input_suffix": after, "n_predict": 60, "temperature": 0.9, "seed": seed}
        told = client.post("/infill", body).json()
        line = (before + told["content"]).rpartition("\n")[2]
        assert line.count("[") >= line.count("]")  # the bracket after the cursor closes what is open
        assert told["stop_type"] in ("eos", "limit")
        assert "".join(event["content"] for event in events(client, "/infill", body)) == told["content"]


def test_a_grammar_decides_itself_how_a_text_begins_and_ends(client: Any) -> None:
    body = {"input_prefix": "x = se", "input_suffix": "\n", "grammar": 'root ::= "lf.a\\n\\n\\nb = [1]]"'}
    assert client.post("/infill", body).json()["content"] == "lf.a\n\n\nb = [1]]"


def test_a_stop_string_is_not_looked_for_before_the_cursor(client: Any) -> None:
    body = {"input_prefix": "def add(a, b):\n    return", "input_suffix": "\n", "n_predict": 12}
    told = client.post("/infill", {**body, "stop": ["return"]}).json()
    assert told["content"].strip()
    assert told["stop_type"] != "word"


def test_other_files_stand_at_the_head_of_a_model_with_separators(
    plain: LoadedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "fim_format", lambda: FORMATS["qwen"])
    extra = [Extra("a = 1\n", "a.py"), Extra("value = 12\n" * 200, "b\nc.py"), Extra("d = 4\n", "d.py")]
    body = InfillRequest(input_prefix="def f(", input_suffix="):\n", input_extra=extra)
    ask = _infill(plain, InfillPlanner(plain), body, Grammars(plain.tokenizer, plain.vocab_size))
    spelled = b"".join(plain.tokenizer.piece(token, special=True) for token in ask.requests[0].ids).decode()
    assert spelled.startswith("<|repo_name|>repository\n<|file_sep|>b c.py\nvalue = 12\n")  # the last matter most
    assert "12\n<|file_sep|>d.py\nd = 4\n<|file_sep|>current\n<|fim_prefix|>" in spelled
    assert len(ask.requests[0].ids) < plain.context - 128
    assert not ask.truncated


def test_warming_the_cache(client: Any) -> None:
    prefix = "# something new that no cache holds\n" * 4
    warm = client.post("/infill", {"input_prefix": prefix, "input_suffix": "", "n_predict": 0}).json()
    assert (warm["content"], warm["tokens_predicted"]) == ("", 0)
    assert warm["timings"]["prompt_n"] > 20
    again = client.post("/infill", {"input_prefix": prefix, "input_suffix": "", "n_predict": 4}).json()
    assert again["timings"]["prompt_n"] == 1


def test_other_files_change_no_text_of_a_model_without_separators(client: Any) -> None:
    whole = client.post("/infill", INFILL).json()
    extra = [{"text": PREFIX + whole["content"], "filename": "other.py"}, {"text": "x = 1", "filename": "a\nb"}]
    told = client.post("/infill", {**INFILL, "input_extra": extra}).json()
    assert told["content"] == whole["content"]
    copied, before = (answer["timings"]["steps"] for answer in (told, whole))
    assert copied < before


def test_the_time_limit(client: Any) -> None:
    told = client.post("/infill", {**INFILL, "n_predict": 400, "t_max_predict_ms": 0.001}).json()
    assert 0 < told["tokens_predicted"] < 100
    assert told["stop_type"] == "limit"


def test_less_indented_lines_are_left_out(client: Any) -> None:
    body = {**INFILL, "n_predict": 120, "temperature": 1.0}
    for seed in range(6):
        whole = client.post("/infill", {**body, "seed": seed}).json()["content"]
        cut = client.post("/infill", {**body, "seed": seed, "n_indent": 8}).json()
        assert cut["content"] == expected_indented(whole, 8)
        assert (
            "".join(e["content"] for e in events(client, "/infill", {**body, "seed": seed, "n_indent": 8}))
            == cut["content"]
        )


def expected_indented(text: str, least: int) -> str:
    """The oracle: whole lines, from the second on, up to the first with code that is less indented."""
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


def test_a_plain_completion(client: Any) -> None:
    body = {"prompt": "def add(a, b):\n", "n_predict": 12, "temperature": 0}
    openai = client.post("/v1/completions", {"prompt": body["prompt"], "max_tokens": 12, "temperature": 0}).json()
    assert client.post("/completion", body).json()["content"] == openai["choices"][0]["text"]
    assert "".join(event["content"] for event in events(client, "/completion", body)) == openai["choices"][0]["text"]
    assert client.post("/completion", {"prompt": ["a", "b"]}).status_code == 400


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
    assert client.post("/detokenize", {"tokens": [99_999]}).status_code == 400
