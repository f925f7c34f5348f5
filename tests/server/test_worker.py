"""Prefix cache on disk, its memory budget, and completions extended past the model's end token."""

import asyncio
from collections.abc import Sequence

import pytest

from localdflash.base.files.paths import cache_folder
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.models.load_options import Options
from localdflash.models.memory.fit import MemoryBudget
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.server import worker
from localdflash.server.api.completion_request import prepare_middle
from localdflash.server.worker import PairWorker
from localdflash.text.stream import AnswerText, Detokenizer
from tests.support.scripted_pair import answering_client

SOURCE = "".join(f"def double_{i}(number):\n    return number * {i}\n\n\n" for i in range(12))
DISK = 100_000_000


def answer(disk_bytes: int, **options: object) -> tuple[str, Request]:
    """Complete with a new engine, which ends afterwards."""
    running = PairWorker(Options(backend="llama.cpp", threads=1, **options), 0, 4, lambda step: None, disk_bytes)  # type: ignore[arg-type]

    async def ask() -> tuple[str, Request]:
        loaded = await running.ready()
        request = prepare_middle(loaded, SOURCE, "\n", 12, SamplingParams()).requests[0]
        text = AnswerText(Detokenizer(loaded.tokenizer), request.ends)
        return "".join([delta.text async for delta in running.stream(request, text)]), request

    running.start()
    try:
        return asyncio.run(ask())
    finally:
        running.close()


def test_the_next_engine_goes_on_from_the_disk() -> None:
    first, cold = answer(DISK)
    again, warm = answer(DISK)
    assert again == first
    assert cold.computed_tokens > 150
    assert warm.computed_tokens <= 32, "the prompt was computed again"


def test_a_disk_that_cannot_be_written_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    cache_folder().parent.mkdir(parents=True)
    cache_folder().write_text("in the way")
    text, _ = answer(0)  # without a budget nothing is tried
    assert (text != "", capfd.readouterr().err) == (True, "")
    assert answer(DISK)[0] == text
    said = capfd.readouterr().err
    assert said.startswith("localdflash: cannot write the prefix cache")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("free", "budget"), [(1 << 30, 256_000_000), (32 << 30, 4 << 30), (1 << 40, 8_192_000_000)])
def test_the_cache_takes_an_eighth_of_what_is_free(free: int, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "system_budget", lambda: MemoryBudget(free, 0, "memory"))
    assert PairWorker(Options(backend="llama.cpp"), None, 4, lambda step: None)._choose_cache_bytes() == budget
    assert PairWorker(Options(backend="llama.cpp"), 0, 4, lambda step: None)._choose_cache_bytes() == 0


def test_a_header_comes_with_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localdflash.code.fim.infill_plan.unfinished_word", lambda _: "")  # heal no word
    prompts = list[str]()

    def answer(prompt: str) -> Sequence[str]:
        prompts.append(prompt)
        return ("\n        return 0" if prompt.endswith("if path is None") else "th is None:", "<|im_end|>")

    place = {"path": "a.py", "prefix": "def size(path):\n", "middle": "    if pa", "suffix": "\n\n\nprint(size('.'))\n"}
    vocabulary = local_files(load_registry().resolve("embedded")).target
    with answering_client(vocabulary, answer) as (client, _):
        (choice,) = client.post("/complete", {**place, "least_sure": 0.25, "stream": False}).json()["choices"]
    assert choice["text"] == "th is None:\n        return 0"
    assert choice["confidence"] > 0.9
    assert len(prompts) == 2
