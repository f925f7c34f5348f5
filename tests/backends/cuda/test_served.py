"""Requests over the API whose tokens the host chooses: the CUDA engine answers them as the reference does.

On a GPU whose memory is this process's, with the references for kernels.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from localdflash.backends.cuda import device as devices
from localdflash.backends.cuda.ops import REFERENCES
from localdflash.loading import backends
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import MemoryBudget
from localdflash.server.api.metrics import Metrics
from localdflash.server.engines import Engines
from localdflash.server.http_app import create_app
from localdflash.server.worker import PairWorker
from tests.support.cards import CardGpu
from tests.support.served import Client

CHAT, COMPLETE = "/v1/chat/completions", "/complete"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}
PLACE = {"path": "a.py", "prefix": "def add(a, b):\n    ret", "suffix": "\n", "max_tokens": 12, "stream": False}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "presence": (CHAT, {**HELLO, "presence_penalty": 1.5}),
    "frequency": (CHAT, {**HELLO, "frequency_penalty": 2.0, "temperature": 0.8, "seed": 3}),
    "bias": (CHAT, {**HELLO, "logit_bias": {"5": 100}}),
    "log probabilities": (CHAT, {**HELLO, "logprobs": True, "top_logprobs": 2}),
    "a grammar": (CHAT, {**HELLO, "grammar": 'root ::= "yes" | "no"'}),
    "a word that is healed": (COMPLETE, PLACE),
}


@pytest.fixture(scope="module")
def clients(tiny_pair: Path) -> Iterator[dict[str, Client]]:
    """One client for each backend."""
    made: list[Engines] = []

    def served(backend: Any) -> Client:
        options = Options(str(tiny_pair / "target.gguf"), backend, threads=1, context=512)
        engines = Engines(PairWorker(options, 8_000_000, 4, Metrics().observe))
        made.append(engines)
        engines.start()
        asyncio.run(engines.ready("chat"))
        return Client(create_app(engines), {})

    with pytest.MonkeyPatch.context() as patch:
        for module in ("identity", "device"):  # in this order, for one imports the other's
            patch.setattr(f"localdflash.backends.cuda.{module}.find_gpus", lambda _name: [CardGpu(0)])
        patch.setattr(
            "localdflash.backends.cuda.load_cuda.budget_of", lambda _device: MemoryBudget(4 << 30, 0, "GPU memory")
        )
        patch.setattr(
            "localdflash.backends.cuda.assembly.measure", lambda _stepper, _runner, ways: dict.fromkeys(ways, 1.0)
        )
        patch.setattr(torch.cuda, "empty_cache", lambda: None)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(devices, "driver_present", lambda: True)
        patch.setattr(backends, "missing_tools", lambda: "")
        patch.setattr("localdflash.loading.load_pair.try_first", lambda *_: None)  # its child knows nothing of this GPU
        patch.setattr("localdflash.backends.cuda.load_cuda.load.__defaults__", (REFERENCES,))
        yield {backend: served(backend) for backend in ("cuda", "torch")}
        for engines in made:
            engines.close()


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
def test_the_host_chooses_as_on_the_reference(clients: dict[str, Client], asked: tuple[str, dict[str, Any]]) -> None:
    path, body = asked
    told = {backend: client.post(path, body) for backend, client in clients.items()}
    assert {answer.status_code for answer in told.values()} == {200}, told["cuda"].text
    ours, theirs = (_said(path, told[backend].json()) for backend in ("cuda", "torch"))
    assert ours == theirs


def _said(path: str, answer: Any) -> Any:
    """The text, and the tokens that were likeliest or how sure the model was."""
    if path == COMPLETE:
        return [(choice["text"], choice["confidence"]) for choice in answer["choices"]]
    (choice,) = answer["choices"]
    likely = [
        [other["token"] for other in one["top_logprobs"]] for one in (choice["logprobs"] or {"content": []})["content"]
    ]
    return choice["message"]["content"], likely
