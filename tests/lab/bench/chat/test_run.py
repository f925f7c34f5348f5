"""Complete chat benchmark on a tiny pair, its plan, and the result after an error."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import DeviceError
from localdflash.lab.bench import verify_table
from localdflash.lab.bench.chat import chat_prompts, chat_run, curve, daemon_ttft
from localdflash.lab.bench.chat.measuring import ChatBench, size_of
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import EngineSpec
from tests.support.costs import drafting_pays

ANSWER = ChatBench.answer
WAYS = ["plain", "drafting", "dflash", "lookup", "forced", "llama.cpp"]


@pytest.fixture
def options(tiny_pair: Path) -> Options:
    return Options(str(tiny_pair / "target.gguf"), threads=1, backend="llama.cpp", costs=drafting_pays)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten questions and answers; leave two contexts, no daemon and no other backend."""

    def shortened(limit: int | None) -> list[chat_prompts.ChatPrompt]:
        return [replace(p, max_tokens=8, question=p.question[:60]) for p in chat_prompts.load(limit)]

    monkeypatch.setattr(chat_run, "load", shortened)
    monkeypatch.setattr(chat_run, "_measure_other_backends", lambda *_: {"torch": {"tok_s": 1.0, "over_plain": 0.5}})
    monkeypatch.setattr(daemon_ttft, "measure", lambda wanted, cold, warm, moved: {"asked": dict(wanted.options)})
    monkeypatch.setattr(verify_table, "SECONDS", 0.0)
    monkeypatch.setattr(chat_run, "size_of", lambda limit: size_of(limit)._replace(draws=4, has_others=True))
    monkeypatch.setattr(curve, "LENGTHS", (256, 512, 1 << 30))
    monkeypatch.setattr(curve, "ANSWER_TOKENS", 6)


class Watched:
    """Watcher that records the plan and the steps."""

    def __init__(self) -> None:
        self.planned, self.line, self.parts = 0.0, "", list[tuple[float, str]]()

    def plan(self, seconds: float, line: str) -> None:
        self.planned, self.line = seconds, line

    def done(self, seconds: float, what: str) -> None:
        self.parts.append((seconds, what))


def run(options: Options, watcher: Watched, result: dict[str, Any]) -> None:
    chat_run.run(options, EngineSpec({"pair": options.pair, "backend": "auto"}), 1, 1, watcher, result)


@pytest.mark.nightly
def test_the_result_has_every_part(options: Options) -> None:
    watcher, result = Watched(), dict[str, Any]()
    run(options, watcher, result)
    assert (result["suite"], result["backend"], result["threads"], result["interrupted"]) == (
        "chat",
        "llama.cpp",
        1,
        False,
    )
    assert list(result["categories"]) == list(chat_prompts.CATEGORIES)
    assert result["identical"] == {"greedy": "7/7", "sampled": "7/7"}
    overall = result["overall"]
    assert overall["tok_s"].keys() == {*WAYS, "sampled plain", "sampled"}
    assert overall["over_plain"].keys() == {"drafting", "dflash", "lookup", "forced", "sampled"}
    assert overall["over_best_plain"] == pytest.approx(
        overall["over_plain"]["drafting"] / max(1.0, 1 / overall["over_llama_cpp"]["plain"]), rel=1e-2
    )
    for row in result["categories"].values():
        assert 1 <= row["tau"]["forced"] <= 8
        assert len(row["accept_by_slot"]) <= 7
    assert result["distribution"]["draws"] == 4 * 6
    assert result["verify"]["over_ar"][8] > 0
    assert result["step_ms"].keys() == set(WAYS)
    assert [point["context"] for point in result["context"]] == [256, 512]
    assert result["other_plain"] == {"torch": {"tok_s": 1.0, "over_plain": 0.5}}
    assert result["daemon"]["asked"]["backend"] == "llama.cpp"  # what was measured, not what was asked for
    assert sum(seconds for seconds, _ in watcher.parts) <= watcher.planned
    assert "7 prompts, 8 modes interleaved" in watcher.line


def test_an_error_keeps_the_results_so_far(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    results, answers = dict[str, Any](), itertools.count()

    def answer(*arguments: Any) -> Any:
        if next(answers) == 12:  # of the second prompt
            raise DeviceError("lost")
        return ANSWER(*arguments)

    monkeypatch.setattr(ChatBench, "answer", answer)
    with pytest.raises(DeviceError):
        run(options, Watched(), results)
    assert (results["interrupted"], len(results["categories"])) == (True, 1)
    assert results["identical"] == {"greedy": "1/1", "sampled": "1/1"}
