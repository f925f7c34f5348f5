import asyncio
import json
import threading
from functools import partial
from http.client import HTTPConnection
from typing import Any

import pytest

from localdflash.code.fim.infill_plan import SPARE_REQUESTS, InfillPlan, InfillPlanner
from localdflash.code.fim.prompt import MIN_ANSWER_TOKENS
from localdflash.engine.host_pair import HostPair
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.completion import complete
from localdflash.server.worker import PairWorker

BODY = {
    "path": "src/box.py",
    "prefix": "class Box:\n    def add(self, a, b):\n",
    "middle": "        return ",
    "suffix": "\n\nbox = Box()\n",
}


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, words begun are gone on with from the first request."""
    monkeypatch.setattr("localdflash.server.api.api_state.InfillPlanner", partial(InfillPlanner, patience=None))


def events(client: Any, **change: Any) -> list[dict[str, Any]]:
    response = client.post("/complete", {**BODY, **change})
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    *parts, rest = response.text.split("\n\n")
    assert rest == ""
    return [json.loads(part.removeprefix("data: ")) for part in parts]


def whole(client: Any, **change: Any) -> dict[str, Any]:
    told: dict[str, Any] = client.post("/complete", {**BODY, "stream": False, **change}).json()
    return told


def test_a_stream_and_its_whole(client: Any) -> None:
    *pieces, end = events(client)
    (choice,) = whole(client)["choices"]
    assert "".join(piece["text"] for piece in pieces) == choice["text"] != ""
    assert all(piece.keys() == {"index", "text", "tokens", "confidence"} and piece["text"] for piece in pieces)
    assert [piece["tokens"] for piece in pieces] == sorted(piece["tokens"] for piece in pieces)
    assert (end["index"], end["text"], end["stop"]) == (0, "", True)
    assert (end["finish"], end["confidence"]) == (choice["finish"], choice["confidence"])
    assert end["timings"]["predicted_n"] == end["tokens"]


def test_the_text_is_what_the_model_says_up_to_an_end(client: Any, plain: LoadedPair) -> None:
    """Where nothing stands on the cursor's line the prompt is the plain completion's."""
    told = whole(client, prefix="x = 1\n", middle="", suffix="\ny = 2\n")["choices"][0]
    text = "".join(complete(plain, "x = 1\n", "\ny = 2\n", 96, SamplingParams()))
    assert text.lstrip("\n").startswith(told["text"].lstrip("\n"))


def test_no_token_is_made_after_the_end(client: Any) -> None:
    """The step that completes the line is the last one."""
    longer = whole(client, mode="lines")
    line = whole(client, mode="line")
    assert line["choices"][0]["finish"] in ("line", "stop")
    assert "\n" not in line["choices"][0]["text"]
    assert line["timings"]["predicted_n"] <= longer["timings"]["predicted_n"]


def test_a_word_is_gone_on_with(client: Any) -> None:
    for middle in ("        retu", "        self.na", "        x = Bo"):
        told = whole(client, middle=middle, explain=True)
        word = next(part for part in told["prompt"] if part["kind"] == "word")
        assert middle.endswith(word["text"])
        assert not told["choices"][0]["text"].startswith(word["text"])


def test_confidence_is_the_mean_probability(client: Any, plain: LoadedPair) -> None:
    *pieces, end = events(client, max_tokens=12)
    for one in (*pieces, end):
        assert 0 < one["confidence"] <= 1
    certain = whole(client, prefix="for i in range(10", middle="", suffix=":\n    pass\n")["choices"][0]
    assert certain["confidence"] is None or 0 < certain["confidence"] <= 1


def test_several_that_differ(client: Any) -> None:
    told = events(client, count=4, seed=3)
    ends = [one for one in told if "finish" in one]
    texts = ["".join(one["text"] for one in told if one["index"] == i) for i in range(len(ends))]
    assert [end["index"] for end in ends] == list(range(len(ends)))
    assert len(set(texts)) == len(texts) > 1
    assert texts[0] == whole(client)["choices"][0]["text"]
    assert texts == [choice["text"] for choice in whole(client, count=4, seed=3)["choices"]]
    assert [one for one in told if one.get("stop")] == told[-1:]


def test_those_that_are_the_same_are_told_once(client: Any) -> None:
    told = events(client, count=3, max_tokens=1, prefix="", middle="impor", suffix="")
    ends = [one for one in told if "finish" in one]
    assert len(ends) < 3
    assert told[-1]["stop"] is True
    assert [one["index"] for one in told] == [*sorted(one["index"] for one in told[:-1]), told[-1]["index"]]


class Nothing:
    """The end of a text of which syntax leaves nothing."""

    ended, reason = True, "suffix"

    def push(self, _text: str, _logprob: float | None = None) -> str:
        return ""

    def finish(self) -> str:
        return ""


@pytest.mark.parametrize(("empty", "count", "found"), [(1, 1, 1), (2, 2, 2), (SPARE_REQUESTS + 1, 1, 0)])
def test_an_empty_answer_makes_way_for_another(
    client: Any, monkeypatch: pytest.MonkeyPatch, empty: int, count: int, found: int
) -> None:
    endings, ending = iter([Nothing()] * empty), InfillPlan.ending
    monkeypatch.setattr(InfillPlan, "ending", lambda filling: next(endings, None) or ending(filling))
    texts = [choice["text"] for choice in whole(client, count=count)["choices"]]
    assert (len(texts), sum(map(bool, texts))) == (max(found, 1), found)


def test_who_did_not_ask_gets_nothing_then(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InfillPlan, "ending", lambda _: Nothing())
    (choice,) = whole(client, least_sure=0.25)["choices"]
    assert choice["text"] == ""


def test_warming(client: Any) -> None:
    new = "# something that nobody has asked for yet\n" * 3
    (end,) = events(client, prefix=new, max_tokens=0)
    assert (end["finish"], end["tokens"], end["confidence"], end["stop"]) == ("length", 0, None, True)
    assert end["timings"]["prompt_n"] > 20
    assert whole(client, prefix=new)["timings"]["prompt_n"] == 1


def test_the_next_key_costs_a_few_tokens(client: Any) -> None:
    """A function typed from one anchor, all of it: at most four tokens of the prompt are computed for each key."""
    typed = "        total = sum(self.values)\n        return total / len(self.values)\n"
    whole(client, middle="", max_tokens=0)
    for end in range(1, len(typed)):
        told = whole(client, middle=typed[:end], max_tokens=2, document="typed")
        assert told["timings"]["prompt_n"] <= 4, typed[:end]


def test_explained(client: Any) -> None:
    context = [
        {"kind": "import", "name": "lib/shapes.py", "text": "def area(r):\n    return 3 * r * r\n", "weight": 1.0},
        {"kind": "open", "name": "big.py", "text": "value = compute(value)\n" * 200, "weight": 0.1},
    ]
    told = whole(client, explain=True, context=context, first_line=10)
    kinds = {part["kind"]: part for part in told["prompt"]}
    assert list(kinds) == ["import", "open", "prefix", "middle", "word", "suffix"]
    assert (kinds["middle"]["text"], kinds["word"]["text"]) == ("return", " ")
    assert kinds["import"]["text"].startswith("def area")
    assert kinds["open"]["cut"] is True
    assert kinds["prefix"]["lines"] == [10, 12]
    assert sum(part["tokens"] for part in told["prompt"]) <= told["budget"]["prompt"]
    assert told["budget"]["context"] == 1024
    assert told["budget"]["answer"] == MIN_ANSWER_TOKENS
    end = events(client, explain=True)[-1]
    assert [part["kind"] for part in end["prompt"]] == ["prefix", "middle", "word", "suffix"]


def test_an_answer_ends_where_the_model_is_not_sure(client: Any) -> None:
    whole_text = whole(client)["choices"][0]["text"]
    assert whole(client, least_sure=0)["choices"][0]["text"] == whole_text
    (sure,) = whole(client, least_sure=0.9999)["choices"]
    assert sure["finish"] == "unsure"
    assert len(sure["text"]) < len(whole_text)
    assert whole_text.startswith(sure["text"])
    assert client.post("/complete", {**BODY, "least_sure": 2}).status_code == 400


def test_copies_change_how_fast_not_what(client: Any) -> None:
    without = whole(client, max_tokens=40, mode="lines")
    copies = [without["choices"][0]["text"]]
    with_them = whole(client, max_tokens=40, mode="lines", copies=copies)
    assert with_them["choices"][0]["text"] == without["choices"][0]["text"]
    assert with_them["timings"]["steps"] <= without["timings"]["steps"]


@pytest.mark.usefixtures("slow")
def test_the_newest_of_a_document_wins(live: Any, worker: PairWorker) -> None:
    found: list[Any] = []
    body = {**BODY, "document": "one", "mode": "lines", "stream": False, "max_tokens": 400, "count": 8, "seed": 1}

    def first() -> None:
        with live.client() as http:
            found.append(http.post("/complete", json=body).json())

    thread = threading.Thread(target=first)
    thread.start()
    live.until(lambda: live.scheduler.running is not None)
    with live.client() as http:
        newer = http.post("/complete", json={**body, "count": 1, "max_tokens": 8}).json()
    thread.join()
    assert newer["choices"][0]["finish"] != "cancelled"
    assert found[0]["choices"][-1]["finish"] == "cancelled"


def test_who_leaves_stops_the_engine(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stepping, step = threading.Event(), HostPair.step

    def until_cancelled(*arguments: Any) -> Any:
        stepping.set()
        live.until(live.scheduler.running.request.cancelled)
        return step(*arguments)

    monkeypatch.setattr(HostPair, "step", until_cancelled)
    cancelled = live.scheduler.totals.cancelled
    headers = {"Authorization": f"Bearer {live.key}", "Content-Type": "application/json"}
    http = HTTPConnection("127.0.0.1", live.port)
    http.request("POST", "/complete", json.dumps(BODY), headers)
    assert stepping.wait(10)
    http.close()
    live.until(lambda: live.scheduler.totals.cancelled == cancelled + 1)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prefix": 1}, "prefix"),
        ({"suffix": None}, "suffix"),
        ({"count": 0}, "count"),
        ({"count": 9}, "count"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"mode": "page"}, "mode"),
        ({"first_line": -1}, "first_line"),
        ({"temperature": -0.1}, "temperature"),
        ({"context": [{"text": "x"}]}, "context[0]"),
        ({"context": [{"kind": "secret", "text": "x"}]}, "context[0].kind"),
        ({"context": "x"}, "context"),
        ({"copies": ["x"] * 65}, "copies"),
        ({"copies": [1]}, "copies[0]"),
        ({"document": 3}, "document"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_wrong_values_are_named(client: Any, change: dict[str, Any], param: str) -> None:
    response = client.post("/complete", {**BODY, **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert "\n" not in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"language": "klingon"},
        {"path": ""},
        {"path": "../../etc/\0passwd\x1b[31m.py"},
        {"prefix": "a\0b\n"},
        {"prefix": "x" * 10_000_000},
        {"middle": "x" * 100_000},
        {"suffix": "漢" * 100_000},
        {"context": [{"kind": "open", "text": "", "name": ""}] * 256},
        {"prefix": "", "middle": "", "suffix": ""},
        {"prefix": "<|fim_middle|><|endoftext|>\n"},
        {"prefix": "\ufeff\u2028\x0c\n"},
        {"max_tokens": 2**31 - 1},
    ],
    ids=range(12),
)
def test_odd_texts_are_completed(client: Any, change: dict[str, Any]) -> None:
    told = client.post("/complete", {**BODY, "stream": False, "explain": True, "max_tokens": 4, **change})
    assert told.status_code == 200, told.text
    asked = sum(map(len, (change.get("prefix", ""), change.get("middle", ""), change.get("suffix", ""))))
    assert any(part["cut"] for part in told.json()["prompt"]) == (asked > 10_000)


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\udc00x"'])
def test_half_characters_are_refused_or_replaced(client: Any, text: str) -> None:
    data = f'{{"prefix": {text}, "max_tokens": 2, "stream": false}}'
    response = client("POST", "/complete", content=data, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_a_body_that_is_too_large(client: Any) -> None:
    response = client.post("/complete", {**BODY, "prefix": "x" * (17 * 1024 * 1024)})
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_completions_of_many_editors_end_all(live: Any) -> None:
    """Eight at once over the socket: each gets an answer or is told that too many wait."""

    async def ask() -> list[int]:
        import httpx2

        transport = httpx2.AsyncHTTPTransport(uds=str(live.socket))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            bodies = [{**BODY, "document": str(i), "max_tokens": 8, "stream": False} for i in range(8)]
            return [r.status_code for r in await asyncio.gather(*(http.post("/complete", json=b) for b in bodies))]

    statuses = asyncio.run(ask())
    assert statuses.count(200) >= 4
    assert set(statuses) <= {200, 503}
