import math
from functools import partial
from itertools import count
from typing import Any

import pytest

from localdflash.base.errors import QueueFull
from localdflash.code.fim.infill_plan import InfillPlanner
from localdflash.server.worker import PairWorker
from tests.server.api.dialects import plain_events

BODY = {
    "path": "src/box.py",
    "prefix": "class Box:\n    def add(self, a, b):\n",
    "middle": "        return ",
    "suffix": "\n\nbox = Box()\n",
}


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heal partial words from the first request on, however busy the machine is."""
    monkeypatch.setattr("localdflash.server.api.api_state.InfillPlanner", partial(InfillPlanner, patience=None))


def events(client: Any, **change: Any) -> list[dict[str, Any]]:
    response = client.post("/complete", {**BODY, **change})
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    return plain_events(response.text)


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


def test_several_that_differ(client: Any) -> None:
    told = events(client, count=4, seed=3)
    ends = [one for one in told if "finish" in one]
    texts = ["".join(one["text"] for one in told if one["index"] == i) for i in range(len(ends))]
    assert [end["index"] for end in ends] == list(range(len(ends)))
    assert len(set(texts)) == len(texts) > 1
    assert texts == [choice["text"] for choice in whole(client, count=4, seed=3)["choices"]]
    assert [one for one in told if one.get("stop")] == told[-1:]


def test_one_answer_is_the_best_of_several(client: Any) -> None:
    """At this position the first of four answers has not the highest score."""
    choices = whole(client, count=4)["choices"]
    best = max(choices, key=lambda choice: choice["score"])
    (only,) = whole(client)["choices"]
    assert (only["text"], only["score"]) == (best["text"], best["score"])
    assert best != choices[0]


def test_a_blank_answer_is_replaced(client: Any) -> None:
    """At this position the first of the answers is blank."""
    place = {"prefix": "a = 'b", "middle": "", "suffix": "'\n"}
    assert whole(client, **place)["choices"][0]["text"].strip()


def test_an_error_of_a_later_answer_does_not_lose_the_first(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, stream, calls = whole(client, count=2)["choices"][0], PairWorker.stream, count()

    def failing(self: PairWorker, *given: Any, **named: Any) -> Any:
        if next(calls):
            raise QueueFull("too many requests are waiting")
        return stream(self, *given, **named)

    monkeypatch.setattr(PairWorker, "stream", failing)
    assert [choice["text"] for choice in whole(client)["choices"]] == [expected["text"]]


def test_an_answer_that_breaks_the_file_says_so(client: Any) -> None:
    place = {"prefix": "x = [1, (2", "middle": "", "suffix": "\n"}
    assert whole(client, **place, max_tokens=3)["choices"][0]["finish"] == "unsound"


def test_equal_choices_are_sent_once(client: Any) -> None:
    told = events(client, count=3, max_tokens=1, prefix="", middle="impor", suffix="")
    assert len([one for one in told if "finish" in one]) < 3
    assert told[-1]["stop"] is True
    assert [one["index"] for one in told] == [*sorted(one["index"] for one in told[:-1]), told[-1]["index"]]


def test_confidence_is_the_probability_of_the_first_token(client: Any) -> None:
    """If the cursor's line is empty, the prompt equals that of /v1/completions."""
    place = {"prefix": "x = 1\n", "suffix": "\ny = 2\n"}
    body = {"prompt": place["prefix"], "suffix": place["suffix"], "logprobs": 0, "max_tokens": 96}
    choice = client.post("/v1/completions", body).json()["choices"][0]
    told = whole(client, **place, middle="", count=2)["choices"][0]
    assert choice["text"].lstrip("\n").startswith(told["text"].lstrip("\n"))
    first = choice["logprobs"]["token_logprobs"][0]
    assert told["confidence"] == pytest.approx(math.exp(first), abs=1e-4)


def test_the_next_key_costs_a_few_tokens(client: Any) -> None:
    """While a line is typed, each key computes at most four prompt tokens."""
    typed = "        return sum(self.values)\n"
    whole(client, middle="", max_tokens=0)
    for end in range(1, len(typed)):
        told = whole(client, middle=typed[:end], max_tokens=2, document="typed", least_sure=0.1)
        assert told["timings"]["prompt_n"] <= 4, typed[:end]


def test_an_answer_ends_where_the_model_is_not_sure(client: Any) -> None:
    whole_text = whole(client)["choices"][0]["text"]
    assert whole(client, least_sure=0)["choices"][0]["text"] == whole_text
    (sure,) = whole(client, least_sure=0.9999)["choices"]
    assert sure["finish"] == "unsure"
    assert len(sure["text"]) < len(whole_text)
    assert whole_text.startswith(sure["text"])
