"""The whole chat bench on a tiny pair, its plan, and what Ctrl-C leaves."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ModelError
from localdflash.lab.bench import verify_table
from localdflash.lab.bench.chat import chat_prompts, chat_run, curve, felt, measuring
from localdflash.lab.bench.chat.chat_modes import ChatWays, Hosts, opened
from localdflash.lab.bench.chat.measuring import QUICK, ChatBench
from localdflash.lab.bench.llama_plain import LoneRowTarget
from localdflash.loading.backends import load_on
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import EngineSpec
from tests.support.costs import drafting_pays

WAYS = ["plain", "drafting", "dflash", "lookup", "forced", "llama.cpp"]


class Watched:
    """Remembers what it is told; at `stop` it behaves as Ctrl-C does."""

    def __init__(self, stop: str = "") -> None:
        self.planned, self.line, self.parts, self._stop = 0.0, "", list[tuple[float, str]](), stop

    def plan(self, seconds: float, line: str) -> None:
        self.planned, self.line = seconds, line

    def done(self, seconds: float, what: str) -> None:
        self.parts.append((seconds, what))
        if self._stop and what == self._stop:
            raise KeyboardInterrupt


@pytest.fixture
def options(tiny_pair: Path) -> Options:
    return Options(str(tiny_pair / "target.gguf"), threads=1, backend="llama.cpp", costs=drafting_pays)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short questions and answers, two contexts, no daemon, no other backend."""

    def shortened(limit: int | None) -> list[chat_prompts.ChatPrompt]:
        return [replace(p, max_tokens=8, question=p.question[:60]) for p in chat_prompts.load(limit)]

    monkeypatch.setattr(chat_run, "load", shortened)
    monkeypatch.setattr(chat_run, "_others", lambda *_: {"torch": {"tok_s": 1.0, "over_plain": 0.5}})
    monkeypatch.setattr(felt, "measure", lambda wanted, cold, warm, moved: {"asked": dict(wanted.options)})
    monkeypatch.setattr(verify_table, "SECONDS", 0.0)
    monkeypatch.setattr(measuring, "QUICK", QUICK._replace(draws=4))
    monkeypatch.setattr(curve, "LENGTHS", (256, 512, 1 << 30))
    monkeypatch.setattr(curve, "ANSWER", 6)


def measured(options: Options, watcher: Watched, limit: int = 1) -> dict[str, Any]:
    return chat_run.run(options, EngineSpec({"pair": options.pair, "backend": "auto"}), limit, 1, watcher)


@pytest.mark.nightly
def test_everything_is_in_the_result(options: Options) -> None:
    watcher = Watched()
    result = measured(options, watcher)
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
    assert "7 prompts, 8 ways in turn" in watcher.line


@pytest.mark.nightly
def test_ctrl_c_leaves_what_was_measured(options: Options) -> None:
    prompt = chat_prompts.load(1)[3].id  # the fourth: of the first three everything is there
    result = measured(options, Watched(stop=prompt))
    assert result["interrupted"]
    assert list(result["categories"]) == list(chat_prompts.CATEGORIES[:3])
    assert result["overall"]["prompts"] == 3
    assert not {"distribution", "context", "daemon"} & result.keys()


# Ways


def test_each_way_is_what_it_says(options: Options) -> None:
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        pairs: dict[str, Any] = ways.pairs
        assert list(pairs) == WAYS
        names = {way: [drafter.name for drafter in pair.drafters] for way, pair in pairs.items()}
        assert names == {
            "plain": [],
            "drafting": ["lookup", "dflash"],
            "dflash": ["dflash"],
            "lookup": ["lookup"],
            "forced": ["dflash"],
            "llama.cpp": [],
        }
        assert pairs["drafting"] is loaded.pair
        assert pairs["lookup"].target is pairs["plain"].target is not loaded.host
        assert isinstance(pairs["llama.cpp"].target, LoneRowTarget)


def test_a_pair_without_a_drafter_has_fewer_ways(options: Options, tiny_pair: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone.gguf"
    alone.symlink_to(tiny_pair / "target.gguf")
    options = replace(options, pair=str(alone))
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        assert list(ways.pairs) == ["plain", "drafting", "llama.cpp"]
        assert not ways.has_model


def test_forced_drafting_drafts_in_every_step_that_has_room(options: Options) -> None:
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        bench = ChatBench(loaded, ways, chat_prompts.load(1), 1, QUICK, Watched())
        done = bench.answer(ways.pairs["forced"], chat_prompts.load(1)[5], measuring.PLAIN_PARAMS, 20)
        drafted = done.stats.steps_by_drafter
        assert drafted.get("none", 0) <= 1  # the last step has room for one token
        assert drafted["dflash"] >= done.stats.steps - 1


@pytest.mark.nightly
def test_answers_in_json_follow_their_schema(options: Options) -> None:
    prompt = next(p for p in chat_prompts.load(1) if p.schema)
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        bench = ChatBench(loaded, ways, chat_prompts.load(1), 1, QUICK, Watched())
        texts = {
            way: loaded.tokenizer.spell(bench.answer(pair, prompt, measuring.PLAIN_PARAMS).ids).decode()
            for way, pair in ways.pairs.items()
        }
    assert all(text.lstrip().startswith("{") and '"brand"' in text for text in texts.values()), texts
    assert len({texts[way] for way in WAYS[:-1]}) == 1


# The plan


def test_the_slow_ways_run_every_other_round() -> None:
    names = ["plain", "drafting", "forced", "llama.cpp"]
    every = {turn.name: turn.every for turn in measuring.turns(ChatWays(dict.fromkeys(names)))}  # type: ignore[arg-type]
    assert every == {"plain": 1, "drafting": 1, "forced": 2, "llama.cpp": 2, "sampled plain": 1, "sampled": 1}


# Longer contexts


@pytest.mark.nightly
def test_contexts_are_filled_but_not_overfilled(options: Options) -> None:
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        assert ways.hosts
        lengths: list[int] = []
        points = curve.measure(loaded, ways.hosts, 2, lengths.append)
    assert lengths == [256, 512]
    for point in points:
        assert point["context"] * 0.9 < point["prompt"] <= point["context"] - curve.ANSWER
        assert point["identical"] == "2/2"
        assert point["tok_s"].keys() == {"plain", "drafting", "forced"}
        assert point["tau"].keys() == {"drafting", "forced"}


def test_a_document_is_read_once(options: Options) -> None:
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        hosts = ways.hosts
        assert isinstance(hosts, Hosts)
        computed, original = list[int](), hosts.drafting.prefill

        def prefill(*arguments: Any) -> int:
            computed.append(original(*arguments))
            return computed[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hosts.drafting, "prefill", prefill)
            patch.setattr(curve, "LENGTHS", (512,))
            curve.measure(loaded, hosts, 2)
    first, *later = computed
    assert first > 400
    assert max(later) < 80  # a question, and what the tokenizer joins with it


# Other backends


@pytest.mark.nightly
def test_backends_that_cannot_run_it_are_left_out(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LOCALDFLASH_MODEL_BACKEND", "llama.cpp")
    original: Callable[..., Any] = load_on

    def without_cpu(backend: str, *arguments: Any) -> Any:
        if backend == "cpu":
            raise ModelError("it cannot")
        return original(backend, *arguments)

    monkeypatch.setattr("localdflash.loading.load_pair.load_on", without_cpu)
    with LoadedPair(options) as loaded, opened(loaded, options) as ways:
        bench = ChatBench(loaded, ways, chat_prompts.load(1), 1, QUICK, Watched())
        monkeypatch.setattr(chat_run, "OTHER_TOKENS", 2)
        found = chat_run._others(options, loaded, bench)
        assert found.keys() == {"torch"}
        assert found["torch"]["tok_s"] > 0
        monkeypatch.setattr(chat_run, "REFERENCE_BYTES", 1)
        assert chat_run._others(options, loaded, bench) == {}
