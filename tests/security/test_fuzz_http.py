"""Fuzzer of HTTP bodies: each gets an answer or one error in the path's format, and the engine still works."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.applications import Starlette

from localdflash.server.api import schemas
from localdflash.server.api.agent_bodies import CountRequest, MessagesRequest, ResponsesRequest
from localdflash.server.api.request_body import MAX_BODY_BYTES, UNSUPPORTED
from tests.security.fuzzing import fuzz, long_enough

STATUSES = {200, 400, 404, 405, 413, 503}
SECONDS = 20.0  # for one answer, on a busy machine

CHAT, COMPLETIONS, INFILL, RAW, LOAD = "/v1/chat/completions", "/v1/completions", "/infill", "/completion", "/load"
ANTHROPIC, RESPONSES = "/v1/messages", "/v1/responses"
PATHS: dict[str, type[msgspec.Struct]] = {
    CHAT: schemas.ChatRequest,
    COMPLETIONS: schemas.CompletionRequest,
    INFILL: schemas.InfillRequest,
    RAW: schemas.RawRequest,
    "/tokenize": schemas.TokenizeRequest,
    "/detokenize": schemas.DetokenizeRequest,
    "/apply-template": schemas.TemplateRequest,
    LOAD: schemas.LoadRequest,
    "/listen": schemas.ListenRequest,
    ANTHROPIC: MessagesRequest,
    f"{ANTHROPIC}/count_tokens": CountRequest,
    RESPONSES: ResponsesRequest,
}
# Bodies that are fine, before anything happens to them; an answer has few tokens whatever happens.
SHORT = {"max_tokens": 2, "max_completion_tokens": 2, "n_predict": 2, "max_output_tokens": 2}
FINE: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], **SHORT},
    COMPLETIONS: {"prompt": "def f(", **SHORT},
    INFILL: {"input_prefix": "def f(", "input_suffix": "\n", **SHORT},
    RAW: {"prompt": "def f(", **SHORT},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1, 2]},
    "/apply-template": {"messages": [{"role": "user", "content": "Hello"}]},
    LOAD: {"pair": "no-such-pair"},
    "/listen": {"host": "127.0.0.1", "port": 0, "hosts": ["localhost"]},
    ANTHROPIC: {"messages": [{"role": "user", "content": "Hello"}], **SHORT},
    f"{ANTHROPIC}/count_tokens": {"messages": [{"role": "user", "content": "Hello"}]},
    RESPONSES: {"input": "Hello", **SHORT},
}
HARMLESS = {*SHORT, "pair"}  # a wild limit may be a valid one, of thousands of tokens; a wild pair a valid one too


class Written(bytes):
    """JSON that `json` does not write, or a lot of it."""

    def __repr__(self) -> str:
        return f"{bytes(self[:40])!r} ({len(self)} bytes)"


MARKERS = [
    *("<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|fim_prefix|>", "\ud800", "\0", "\x1b[2J", "\u202e", "\uffff")
]
WORDS = ["", "x", "user", "system", "text", "content", "json_schema", "json_object", "localdflash"]
TEXTS = st.sampled_from(WORDS + MARKERS) | st.text(st.characters(), max_size=8)
NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 16, 2**31 - 1, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, 1e-300, 1e308, -0.0, 5e-324]
)
MANY = (
    *((b'"', b"a", 1 << 17, b'"'), (b'"', b"word ", 1 << 18, b'"'), (b'"', b"\xc3\xa9", 1 << 15, b'"')),
    *((b'"', part, 1 << 12, b'"') for part in (b"<|im_end|>", b"\\u0000", b"\xf0\x9f\x98\x8b", b" ", b"\\n")),
    *((b"[" * depth, b"1", 1, b"]" * depth) for depth in (10, 500, 900, 990, 5000)),
    *((b"", b'{"a":', depth, b"1" + b"}" * depth) for depth in (10, 500, 900, 990, 5000)),
    *((b"[1", b",1", times, b"]") for times in (17, 4096, 1 << 19)),
    *((b"[[1]", b",[1]", times, b"]") for times in (17, 1 << 16)),
    *((b'["x"', b',"x"', times, b"]") for times in (17, 64, 1 << 16)),
    (b'[{"role":"user","content":"x"}', b',{"role":"user","content":""}', 3000, b"]"),
    (b"{", b'"a":1,', 1 << 16, b'"a":1}'),
)
LOTS = st.sampled_from([Written(head + part * times + end) for head, part, times, end in MANY])
ODD = (
    *(b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"9" * 400, b"0" * 9, b"01", b"1.", b"tru", b"'x'", b"", b"\xff"),
    *(b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\x"', b'"\n"', b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'"open'),
    *(b"\xef\xbb\xbf1", b"[" * 100_000, b"/**/1", b"1,", b"1]", b"1}"),
)
ODDITIES = st.sampled_from(ODD).map(Written)
GRAMMAR_TEXTS = (
    *('root ::= "x"', "root ::= root", "root ::= (", 'root ::= "x"{1,999999999}', "root ::= [^", "root ::= undefined"),
    *("root ::= " + "(" * 5000, "root ::= [a-z]*" * 50, 'root ::= a\na ::= b\nb ::= a | "x"', 'root ::= ("a"*)*'),
)
GRAMMARS = st.sampled_from(GRAMMAR_TEXTS)
JSON_SCHEMAS: tuple[dict[str, Any], ...] = (
    *({"type": "object"}, {"$ref": "#"}, {"$ref": "#/nowhere"}, {"$ref": "http://127.0.0.1:1/x"}, {"type": "string"}),
    *({"pattern": "(" * 500}, {"type": "string", "pattern": "(a+)+$"}, {"enum": []}, {"not": {}}, {"type": ["x"]}),
    *({"minLength": 10**9, "type": "string"}, {"type": "array", "minItems": 10**9}, {"allOf": [{"$ref": "#"}]}),
    {"type": "integer", "minimum": 5, "maximum": 1},
)
SCHEMAS: Any = st.sampled_from(JSON_SCHEMAS)
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.integers(), st.floats(), TEXTS, ODDITIES, LOTS, GRAMMARS, SCHEMAS
)
WILD = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["role", "content", "type", "text", "schema", "a"]) | TEXTS, inner, max_size=4),
        st.fixed_dictionaries({"role": inner, "content": inner}).map(lambda message: [message]),
        st.fixed_dictionaries({"type": inner, "text": inner}).map(lambda part: [part]),
        st.fixed_dictionaries({"type": inner, "json_schema": inner, "schema": inner}),
    ),
    max_leaves=6,
)
# What fits a field, or nearly does: so that more than the check of types is reached.
ANY_TEXT = TEXTS | LOTS


def objects(count: int, required: dict[str, Any], /, min_count: Any = 0, **optional: Any) -> st.SearchStrategy[Any]:
    """Return lists of objects; a field with several words has one of them."""
    fields = {
        name: st.sampled_from(values.split()) if isinstance(values, str) else values
        for name, values in required.items()
    }
    return st.lists(st.fixed_dictionaries(fields, optional=optional), min_size=min_count, max_size=count)


MESSAGES = objects(4, {"role": "user assistant system tool developer", "content": TEXTS}, 1)
BLOCKS = objects(
    4,
    {"type": "text thinking tool_use tool_result image input_text output_text"},
    **dict.fromkeys(("text", "thinking", "id", "name", "tool_use_id"), TEXTS),
    input=st.dictionaries(TEXTS, SCALARS, max_size=2),
    content=TEXTS | st.just([{"type": "text", "text": "x"}]),
)
BLOCK_MESSAGES = objects(3, {"role": "user assistant", "content": BLOCKS}, 1)
ITEMS = objects(
    4,
    {"type": "message function_call function_call_output reasoning item_reference"},
    **dict.fromkeys(("call_id", "name"), TEXTS),
    **dict.fromkeys(("content", "output"), TEXTS | BLOCKS),
    role=st.sampled_from(["user", "assistant", "developer"]),
    summary=BLOCKS,
    arguments=ANY_TEXT,
)
TOKENS = st.lists(st.sampled_from([0, 1, 2, 100, 6143, 6144, 2**31 - 1]) | st.integers(0, 6143), max_size=5)
FITTING: dict[str, st.SearchStrategy[Any]] = {
    "messages": MESSAGES | BLOCK_MESSAGES,
    "input": ANY_TEXT | ITEMS,
    "system": ANY_TEXT | BLOCKS,
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), st.floats(-2, 2)),
    "logit_bias": st.dictionaries(st.integers(-1, 6145).map(str), st.floats(-100, 100), max_size=3)
    | st.lists(st.tuples(st.integers(0, 6145), st.floats(-100, 100)).map(list), max_size=3),
    "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled", "adaptive"])}),
    "prompt": st.one_of(ANY_TEXT, TOKENS, st.lists(TEXTS, max_size=3), st.lists(TOKENS, max_size=3)),
    **dict.fromkeys(("suffix", "content", "input_prefix", "input_suffix"), ANY_TEXT),
    "input_extra": st.lists(st.fixed_dictionaries({"text": TEXTS, "filename": TEXTS}), max_size=3),
    "tokens": TOKENS,
    "temperature": st.floats(0, 10) | st.sampled_from([5e-324, 1e-300, 10]),
    **dict.fromkeys(("top_p", "min_p"), st.floats(1e-6, 1) | st.sampled_from([0, 1e-6, 1])),
    **dict.fromkeys(("repeat_penalty", "repetition_penalty"), st.floats(0.1, 10)),
    **dict.fromkeys(("top_k", "n_indent"), st.sampled_from([0, 1, 2, 40, 6143, 6145, 2**31 - 1])),
    "seed": st.integers(-1, 2**63 - 1),
    "n": st.integers(1, 4),
    "stop": st.lists(TEXTS.filter(bool), max_size=4) | TEXTS,
    **dict.fromkeys(("stream", "steps", "add_special", "parse_special", "with_pieces"), st.booleans()),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "logprobs": st.booleans() | st.integers(0, 20),
    "top_logprobs": st.integers(0, 20),
    "grammar": GRAMMARS,
    "json_schema": SCHEMAS,
    "response_format": st.fixed_dictionaries(
        {"type": st.just("json_schema"), "json_schema": st.fixed_dictionaries({"schema": SCHEMAS})}
    ),
    "prediction": st.fixed_dictionaries({"type": st.just("content"), "content": ANY_TEXT}),
    "chat_template_kwargs": st.dictionaries(TEXTS | st.sampled_from(["messages", "bos_token"]), TEXTS | st.booleans()),
    "document": TEXTS,
    "t_max_predict_ms": st.sampled_from([-1, 0, 5e-324, 1, 1e9]),
    "response_fields": st.lists(
        st.sampled_from(["content", "timings/prompt_n", "a/b", "/", "", "content/x"]), max_size=4
    ),
    "model": st.sampled_from(["embedded", "localdflash", "", "embeded", "qwen3-8b", "x\n\x1b[2J" * 50, "\ud800"])
    | TEXTS,
    "backend": st.sampled_from(["auto", "cuda", "x"]),
}
OURS = {name for kind in PATHS.values() for name in kind.__struct_fields__}
NAMES = sorted(OURS | UNSUPPORTED.keys() | {"x"})


@dataclass(frozen=True)
class Sent:
    """HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def written(value: Any) -> bytes:
    """Encode a value as JSON, with `Written` parts unchanged and lone surrogates in UTF-8."""
    match value:
        case Written():
            return value
        case dict():
            return b"{" + b",".join(written(key) + b":" + written(inner) for key, inner in value.items()) + b"}"
        case list():
            return b"[" + b",".join(map(written, value)) + b"]"
        case str():
            return json.dumps(value, ensure_ascii=len(value) % 2 == 0).encode("utf-8", "surrogatepass")
    return json.dumps(value).encode()


DAMAGES = st.lists(st.tuples(st.integers(0, 4095), st.binary(max_size=3)), min_size=1, max_size=2)


@st.composite
def requests(draw: st.DrawFn) -> Sent:
    path = draw(st.sampled_from(list(PATHS)))
    fields = [*FINE[path].items()]
    known = [name for name in PATHS[path].__struct_fields__ if name not in HARMLESS]
    others = [name for name in NAMES if name not in HARMLESS]
    for name in draw(st.lists(st.sampled_from(known * 4 + others), max_size=4)):
        fits = draw(st.sampled_from([FITTING.get(name, WILD)] * 4 + [WILD]))
        if draw(st.integers(0, 9)):  # else a key may be there twice
            fields = [field for field in fields if field[0] != name]
        fields.insert(draw(st.integers(0, len(fields))), (name, draw(fits)))
    body = b"{" + b",".join(written(name) + b":" + written(value) for name, value in fields) + b"}"
    for at, put in draw(draw(st.sampled_from([st.just([])] * 6 + [DAMAGES]))):
        place = at * len(body) // 4096
        body = body[:place] + put + body[place + len(put) :]
    method = draw(st.sampled_from(["POST"] * 20 + ["GET", "PUT", "OPTIONS", "HEAD"]))
    kind = draw(st.sampled_from(["application/json"] * 20 + ["text/plain", "application/json; charset=latin-1", ""]))
    more = draw(
        st.sampled_from([{}] * 20 + [{"content-length": size} for size in ("0", "-1", "x", "9" * 30, "16777217")])
    )
    return Sent(method, path, {"content-type": kind, **more}, body)


ANYTHING = st.builds(
    Sent,
    st.just("POST"),
    st.sampled_from(list(PATHS)),
    st.just({"content-type": "application/json"}),
    st.one_of(WILD, st.just(Written(b" " * (MAX_BODY_BYTES + 1)))).map(written) | st.binary(max_size=40),
)


class Target:
    """Client of the app in one event loop."""

    def __init__(self, app: Starlette, runner: asyncio.Runner) -> None:
        self._client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost", timeout=SECONDS
        )
        self._runner = runner
        self._asked = 0
        self.statuses: dict[int, int] = {}
        self.usual = self.answer()

    def send(self, sent: Sent) -> httpx2.Response:
        return self._runner.run(self._client.request(sent.method, sent.path, headers=sent.headers, content=sent.body))

    def answer(self) -> str:
        """Return the engine's answer to a valid request."""
        body = {**FINE[COMPLETIONS], "max_tokens": 8, "temperature": 0, "seed": 1}
        response = self.send(Sent("POST", COMPLETIONS, {"content-type": "application/json"}, written(body)))
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def check(self, sent: Sent) -> None:
        start = time.monotonic()
        response = self.send(sent)
        assert time.monotonic() - start < SECONDS
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        assert response.status_code in STATUSES, response.text
        if sent.method != "HEAD":
            is_an_answer(response)
        self._asked += 1
        if self._asked % 20 == 0:
            assert self.answer() == self.usual


def is_an_answer(response: httpx2.Response) -> None:
    """Check for JSON or JSON events; an error is one line without internals."""
    kind = response.headers["content-type"]
    if kind.startswith("text/event-stream"):
        assert response.status_code == 200
        events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        answer_body = [json.loads(event) for event in events if event != "[DONE]"]
        assert "its log says more" not in response.text
        assert not any("internal_error" in str(event.get("error")) for event in answer_body)
        return
    assert kind == "application/json"
    answer_body = response.json()
    if response.status_code == 200:
        return
    anthropic = answer_body.pop("type", None) == "error"
    assert list(answer_body) == ["error"]
    error = answer_body["error"]
    assert set(error) == ({"message", "type"} if anthropic else {"message", "type", "param", "code"})
    assert error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 2000
    assert "Traceback" not in error["message"]


@pytest.fixture
def target(app: Starlette) -> Iterator[Target]:
    with asyncio.Runner() as runner:
        yield Target(app, runner)


@settings(max_examples=50, suppress_health_check=[*HealthCheck])
@given(sent=requests() | ANYTHING)
def test_any_request(target: Target, sent: Sent) -> None:
    target.check(sent)


@pytest.mark.nightly
@long_enough
def test_fuzz(target: Target) -> None:
    fuzz(requests() | ANYTHING, target.check)
    assert target.answer() == target.usual
    assert {200, 400} <= target.statuses.keys(), target.statuses
