"""/slots, /v1/health, and what is said to who asks for embeddings."""

from typing import Any

import openai
import pytest

from tests.server.api.test_streams import ENDLESS, LONG, send


def test_a_slot_says_what_it_works_at(live: Any) -> None:
    with live.client() as client:
        (idle,) = client.get("/slots").json()
        assert (idle["id"], idle["n_ctx"], idle["is_processing"], idle["speculative"]) == (0, 1024, False, True)
        assert client.get("/props").json()["total_slots"] == 1
        assert client.get("/slots?fail_on_no_slot=1").status_code == 200
        with send(live, "/v1/chat/completions", {**LONG, "max_tokens": 900, "stream": True, "grammar": ENDLESS}):
            live.until(lambda: live.scheduler.running is not None and live.scheduler.running.request.stats.steps > 0)
            (busy,) = client.get("/slots").json()
            (token,) = busy["next_token"]
            assert busy["is_processing"]
            assert busy["params"]["temperature"] == 3.0
            assert token["n_decoded"] + token["n_remain"] == busy["params"]["n_predict"] <= 900
            assert token["has_next_token"]
            full = client.get("/slots?fail_on_no_slot=1")
            assert (full.status_code, full.json()["error"]["code"]) == (503, "queue_full")
            assert "Write a long program" not in client.get("/slots").text
    live.until_idle()


def test_health_has_a_second_path(client: Any) -> None:
    assert client.get("/v1/health").json() == client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/embedding"])
def test_embeddings_are_refused_in_words(client: Any, path: str) -> None:
    told = client.post(path, {"input": "x", "model": "embedded"})
    assert told.status_code == 404
    assert told.json()["error"]["message"].startswith("embeddings are not offered: ")


def test_embeddings_are_refused_to_the_official_client_at_once(live: Any) -> None:
    with (
        openai.OpenAI(api_key=live.key, base_url=f"http://127.0.0.1:{live.port}/v1") as official,
        pytest.raises(openai.NotFoundError, match="not offered"),
    ):
        official.embeddings.create(model="embedded", input="x")
