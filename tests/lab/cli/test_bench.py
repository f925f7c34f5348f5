import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localdflash.lab.bench import bench_run as bench
from localdflash.lab.bench import verify_table
from localdflash.lab.bench.prompt_set import CATEGORIES, BenchPrompt, load
from localdflash.lab.cli import bench_speed
from localdflash.models.registry import defaults

CATEGORY_KEYS = {
    *("prompts", "tokens", "ar_tok_s", "best_ar_tok_s", "tok_s", "speedup", "tau", "accept_by_slot"),
    *("steps_by_drafter", "identical", "ttft_ms", "llama_cpp_ar_tok_s", "ar_over_llama_cpp_ar", "over_best_ar"),
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten prompts, and answers to eight tokens."""

    def shortened(limit: int | None) -> list[BenchPrompt]:
        return [
            replace(prompt, max_tokens=8, prefix=prompt.prefix[-60:], suffix="\n", question=prompt.question[:60])
            for prompt in load(limit)
        ]

    monkeypatch.setattr(bench, "load", shortened)


@pytest.mark.nightly
@pytest.mark.usefixtures("short")
def test_the_result_and_the_table(
    run: Callable[..., Any], tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_table, "SECONDS", 0.0)
    file = tmp_path / "results" / "cpu.json"
    done = run("bench", "--limit", 1, "--repeats", 1, *tiny, "--backend", "llama.cpp", "--json", file)
    assert done.code == 0
    result = json.loads(file.read_text())
    assert result["backend"] == "llama.cpp"
    assert result.keys() >= {
        *("command", "date", "commit", "processor", "pair", "backend", "threads", "categories", "overall", "step_ms"),
        *("bandwidth_gb_s", "peak_memory_mb", "verify"),
    }
    assert list(result["categories"]) == list(CATEGORIES)
    for name, category in result["categories"].items():
        assert category.keys() == CATEGORY_KEYS, name
        assert (category["prompts"], category["identical"]) == (1, "1/1")
        assert category["best_ar_tok_s"] >= max(category["ar_tok_s"], category["llama_cpp_ar_tok_s"])
        assert category["ar_tok_s"] > 0
        assert category["ttft_ms"]["p50"] <= category["ttft_ms"]["p95"]
    assert result["overall"]["identical"] == "5/5"
    assert result["overall"]["tokens"] == sum(c["tokens"] for c in result["categories"].values()) <= 40
    assert result["step_ms"]["ar"] > 0
    assert "dflash" in result["step_ms"]["draft"]
    lines = done.out.splitlines()
    assert lines[0].split()[:2] == ["CATEGORY", "PLAIN"]
    assert [line.split()[0] for line in lines[1:-1]] == [*CATEGORIES, "overall"]
    assert all(line.split()[6] in ("1/1", "5/5") for line in lines[1:-1])
    assert lines[-1].startswith("verify step by width, relative to a single-token step: 1 ")


def result_with(identical: str) -> dict[str, Any]:
    row: dict[str, Any] = {"ar_tok_s": 1.0, "best_ar_tok_s": 1.5, "tok_s": 2.0, "speedup": 2.0, "tau": 1.5}
    row |= {"identical": identical, "ttft_ms": {"p50": 1.0}}
    return {"categories": {"prose": row}, "overall": row, "verify": {}}


@pytest.mark.parametrize(("identical", "code"), [("7/7", 0), ("6/7", 1)])
def test_a_different_output_gives_exit_code_one(
    identical: str, code: int, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "run", lambda *_arguments: result_with(identical))
    done = run("bench", "--pair", "embedded")
    assert done.code == code
    assert identical in done.out


def test_a_closed_pipe_loses_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(bench, "run", lambda *_arguments: result_with("7/7"))
    monkeypatch.setattr(bench_speed, "print_table", closed)
    with pytest.raises(BrokenPipeError):
        bench_speed.command.main(
            ["--pair", "embedded", "--json", str(tmp_path / "a.json")], standalone_mode=False, obj={}
        )
    assert json.loads((tmp_path / "a.json").read_text()).items() >= result_with("7/7").items()


def test_the_default_pair_is_the_chat_pair(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def measure(options: Any, *_: Any) -> None:
        asked.append(options.pair)
        raise KeyboardInterrupt

    monkeypatch.setattr(defaults, "chat_pair", lambda _config: "some-chat")
    monkeypatch.setattr(bench_speed, "is_chat_pair", lambda _pair, _suite: False)
    monkeypatch.setattr(bench, "run", measure)
    assert [run("bench").code, run("bench", "--pair", "embedded").code] == [130, 130]
    assert asked == ["some-chat", "embedded"]
