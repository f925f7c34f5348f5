"""Contract of every API dialect: text, finish reason, token counts and error replies."""

import json
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.code.fim.prompt import Gap
from localdflash.engine.sampling_params import SamplingParams
from localdflash.lab.scripts.support.direct_answer import answer_directly
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.chat_request import render_chat
from localdflash.server.api.completion_request import prepare_infill, prepare_text
from localdflash.server.api.generation import GenerationRequest
from localdflash.server.api.request_body import MAX_BODY_BYTES, UNSUPPORTED
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.text.chat_template import TemplateMessage
from localdflash.text.grammar import Grammars
from tests.server.api.dialects import (
    AFTER,
    BEFORE,
    CHAT,
    CHATS,
    COMPLETING,
    COMPLETIONS,
    DIALECTS,
    INFILL,
    MESSAGES,
    PROMPT,
    QUESTION,
    RESPONSES,
    Dialect,
    plain_events,
    response_events,
)
from tests.support.message_events import events_of

SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 7}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "size": {"type": "integer"}},
    "required": ["ok", "size"],
    "additionalProperties": False,
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
every_chat = pytest.mark.parametrize("dialect", CHATS, ids=lambda dialect: dialect.path)
# A dialect for each shape of an error.
every_shape = pytest.mark.parametrize("dialect", [CHAT, MESSAGES], ids=lambda dialect: dialect.path)


def prepared(plain: LoadedPair, dialect: Dialect, limit: int, params: SamplingParams) -> GenerationRequest:
    """Prepare the request without a server."""
    if dialect in CHATS:
        return render_chat(plain, [TemplateMessage("user", QUESTION)]).prepare(limit, params)
    if dialect is not INFILL:
        return prepare_text(plain, PROMPT, limit, params)
    planner, gap = InfillPlanner(plain, patience=None), Gap("", "", BEFORE, "", AFTER)
    return prepare_infill(plain, planner.plan(gap, max_tokens=limit, params=params, max_prompt_tokens=plain.context))


@every_dialect
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_the_answer_is_that_of_decoding_without_drafts(
    client: Any, plain: LoadedPair, dialect: Dialect, sampling: dict[str, Any]
) -> None:
    params = SamplingParams(**sampling)
    request = prepared(plain, dialect, 32, params)
    expected = answer_directly(plain, request)
    text = expected.text
    for draft in (True, False):
        reply = dialect.both(client, **sampling, draft=draft)
        assert reply.text == text
        assert len(text) > 4
        if dialect is not INFILL:  # which says "limit" where syntax ends the text, too
            assert reply.finish == ("length" if expected.finish == "length" else "stop")
            if reply.finish == "length":
                assert reply.sizes == (len(request.requests[0].ids), 32)
    if dialect in (CHAT, *COMPLETING):
        drafted, alone = (
            client.post(dialect.path, dialect.body(**sampling, draft=draft)).json()["timings"]
            for draft in (True, False)
        )
        assert (drafted["draft_n"] > 0, alone["draft_n"]) == (True, 0)
        assert alone["steps"] == alone["predicted_n"]


@pytest.mark.parametrize("dialect", [one for one in DIALECTS if one.stop], ids=lambda dialect: dialect.path)
def test_a_stop_string_ends_the_text_before_it(client: Any, dialect: Dialect) -> None:
    whole = dialect.ask(client).text
    stop = whole[4:6]
    reply = dialect.both(client, stop=["never this", stop])
    assert (reply.text, reply.finish) == (whole.partition(stop)[0], "stop")
    named = client.post(dialect.path, dialect.body(stop=["never this", stop])).json()
    if dialect is MESSAGES:
        assert (named["stop_reason"], named["stop_sequence"]) == ("stop_sequence", stop)
    if dialect in COMPLETING[1:]:
        assert (named["stop_type"], named["stopping_word"]) == ("word", stop)


@every_chat
def test_a_form_of_the_answer(client: Any, plain: LoadedPair, dialect: Dialect) -> None:
    expected = prepared(plain, dialect, 120, SamplingParams(**SAMPLED))
    expected.requests[0].constraint = Grammars(plain.tokenizer).json_schema(SCHEMA)
    text = answer_directly(plain, expected).text
    assert dialect.both(client, max_tokens=120, schema=SCHEMA, **SAMPLED).text == text
    assert set(json.loads(text)) == {"ok", "size"}


def test_a_last_message_of_the_assistant_is_continued(client: Any) -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "def add"}]
    more = CHAT.ask(client, messages=messages, continue_final_message=True)
    assert MESSAGES.both(client, messages=messages) == more


@pytest.mark.parametrize("dialect", [CHAT, *COMPLETING], ids=lambda dialect: dialect.path)
def test_penalties_and_biases(client: Any, dialect: Dialect) -> None:
    shift = {"frequency_penalty": 2.0, "presence_penalty": -0.5, "logit_bias": {"10": 4.0, "11": -100}}
    drafted, alone = (dialect.ask(client, **shift, **SAMPLED, draft=draft) for draft in (True, False))
    assert drafted.text == alone.text != dialect.ask(client, **SAMPLED).text
    (token,) = client.post("/tokenize", {"content": " return"}).json()["tokens"]
    if dialect is not INFILL:  # whose text ends by its syntax
        for bias in ({str(token): 100}, [[token, 100]]):
            assert dialect.ask(client, max_tokens=5, logit_bias=bias).text == " return" * 5


def refused(dialect: Dialect, response: Any, status: int) -> str:
    """Return the error message after checking status and format."""
    assert response.status_code == status, response.text
    return dialect.error(response.json())


@every_dialect
def test_names_that_are_no_pairs_mean_the_loaded_pair(
    client: Any, client_of: Any, engine_set: Engines, dialect: Dialect
) -> None:
    """Claude Code names Anthropic's models, other programs the model of their makers' examples."""
    for name in ("gpt-4o", "claude-opus-4-8[1m]", "haiku", "meta-llama/Llama-3", "llama3:8b"):
        assert client.post(dialect.path, dialect.body(model=name, max_tokens=2)).status_code == 200
    for name in ("qwen3-8b", "hf:a/b/c.gguf", "ollama:llama3", "/a/file", "file.gguf"):
        message = refused(dialect, client.post(dialect.path, dialect.body(model=name)), 404)
        assert message.startswith(f"model '{name}' is not loaded, 'embedded' is: ")
    strict = client_of(create_app(engine_set, refuses_unknown=True))
    message = refused(dialect, strict.post(dialect.path, dialect.body(model="embeded")), 404)
    assert "did you mean 'embedded'?" in message
    assert strict.post(dialect.path, dialect.body(model="localdflash", max_tokens=2)).status_code == 200


@every_dialect
def test_requests_that_are_refused(client: Any, dialect: Dialect) -> None:
    def sent(**change: Any) -> Any:
        return client.post(dialect.path, dialect.body(**change))

    assert "'qwen3-8b' is not loaded, 'embedded' is" in refused(dialect, sent(model="qwen3-8b"), 404)
    assert refused(dialect, sent(temperature="hot"), 400).startswith("temperature: ")
    assert refused(dialect, sent(functions=[{}]), 400).startswith("functions: not supported")
    neutral = {name: values[0] for name, values in UNSUPPORTED.items() if values and name not in ("tools",)}
    neutral |= {name: None for name in UNSUPPORTED if name not in neutral}
    neutral |= {"tool_choice": None, "user": "me", "something": {"new": 1}}
    assert sent(**neutral, max_tokens=2).status_code == 200


@every_shape
def test_what_comes_before_the_body(client: Any, dialect: Dialect) -> None:
    path = dialect.path
    refused(dialect, client("GET", path), 405)
    assert client("GET", path).headers["allow"] == "POST"
    refused(dialect, client("GET", f"{path}/other"), 404)
    said = {"content-type": "Application/JSON; charset=utf-8"}
    assert client("POST", path, content=json.dumps(dialect.body(max_tokens=1)), headers=said).status_code == 200
    large = {**said, "content-length": str(MAX_BODY_BYTES + 1)}
    refused(dialect, client("POST", path, content=b"{}", headers=large), 413)


def test_a_body_is_not_read_beyond_the_limit(client: Any) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1 << 20
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    refused(CHAT, client("POST", CHAT.path, content=endless(), headers=headers), 413)
    assert read <= MAX_BODY_BYTES + (2 << 20)


@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES, COMPLETIONS], ids=lambda dialect: dialect.path)
def test_a_prompt_that_does_not_fit(client: Any, dialect: Dialect) -> None:
    long = "word " * 1500
    change: dict[str, Any] = {"messages": [{"role": "user", "content": long}]}
    size = client.post("/apply-template", {**change, "count": True}).json()["tokens"]
    if dialect is COMPLETIONS:
        size = len(client.post("/tokenize", {"content": long}).json()["tokens"])
    change = {RESPONSES.path: {"input": long}, COMPLETIONS.path: {"prompt": long}}.get(dialect.path, change)
    response = client.post(dialect.path, dialect.body(**change))
    found = refused(dialect, response, 400)
    # Each client's own rule, read in the client's program:
    claude_code = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", found)  # 2.1.197; it compacts
    assert claude_code
    assert claude_code.groups() == (str(size), "1024")
    assert "this model's maximum context length is" in found.lower()  # litellm 1.110, exception_mapping_utils; aider's
    assert re.search(r"maximum context length is \d+ tokens", found)  # pi 0.73, pi-ai/utils/overflow; it compacts
    if dialect is not MESSAGES:
        about = response.json()["error"]
        assert about["code"] == "context_length_exceeded"  # opencode 1.18; it compacts
        assert about["param"] == {COMPLETIONS: "prompt", RESPONSES: "input"}.get(dialect, "messages")
    if dialect is RESPONSES:  # Codex, codex-api/sse/responses: the code of a failed response in a stream
        text = client.post(dialect.path, dialect.body(stream=True, **change)).text
        event = json.loads(text.removeprefix("event: response.failed\ndata: "))
        assert event["response"]["error"] == {"code": "context_length_exceeded", "message": found}


def test_a_response_has_its_metadata(client: Any) -> None:
    body = RESPONSES.body(max_tokens=1)
    for change in ({"metadata": {"task": "7"}}, {"metadata": None}, {}):
        expected = change.get("metadata") or {}
        assert client.post(RESPONSES.path, {**body, **change}).json()["metadata"] == expected
        text = client.post(RESPONSES.path, {**body, **change, "stream": True}).text
        assert response_events(text)[-1]["response"]["metadata"] == expected


@pytest.mark.parametrize("change", [{}, {"suffix": "x"}, None], ids=["prompt", "suffix", "chat"])
def test_a_prompt_far_too_long_is_not_tokenized_to_its_end(
    client: Any, change: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded, long = list[str](), "漢字 " * 20_000
    vocabulary = worker.loaded.tokenizer._vocabulary
    encode = vocabulary.encode

    def counted(text: str) -> Any:
        encoded.append(text)
        return encode(text)

    monkeypatch.setattr(vocabulary, "encode", counted)
    body = {"messages": [{"role": "user", "content": long}]} if change is None else {"prompt": long, **change}
    dialect = CHAT if change is None else COMPLETIONS
    assert "more than 2048 tokens > 1024 maximum" in refused(dialect, client.post(dialect.path, body), 400)
    assert sum(map(len, encoded)) < 10_000


@every_dialect
def test_an_error_in_the_middle_is_the_last_event(
    client: Any, worker: Any, monkeypatch: pytest.MonkeyPatch, dialect: Dialect
) -> None:
    step, calls = worker.loaded.pair.step, 0

    def breaking(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise LocaldflashError("it broke")
        return step(*arguments)

    monkeypatch.setattr(worker.loaded.pair, "step", breaking)
    body = dialect.body(temperature=3.0, seed=1, stream=True)
    read = {MESSAGES.path: events_of, RESPONSES.path: response_events}.get(dialect.path, plain_events)
    *_, last = read(client.post(dialect.path, body).text)
    assert dialect.error_event(last) == "it broke"
    monkeypatch.undo()
    assert dialect.ask(client, max_tokens=2)


@every_shape
def test_an_unexpected_error_reveals_no_user_text(
    client: Any, worker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, dialect: Dialect
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret text of a user")

    with caplog.at_level(logging.DEBUG):
        for body in (dialect.body(max_tokens=2), dialect.body(system="canary", temperature="canary")):
            client.post(dialect.path, {**body, "messages": [{"role": "user", "content": "canary" * 3000}]})
        monkeypatch.setattr(worker, "stream", broken)
        told = refused(dialect, client.post(dialect.path, dialect.body()), 500)
    assert told == "internal error; see the log of localdflash"
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    assert "canary" not in caplog.text
