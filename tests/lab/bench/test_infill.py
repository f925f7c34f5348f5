import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import ContextOverflow, ModelError
from localdflash.lab.bench import infill
from localdflash.lab.bench.infill import Task, load, run

LINE = {
    "task_id": "T/0",
    "prompt": "def double(x):\n",
    "suffix": "    return y\n",
    "canonical_solution": "    y = 2 * x\n",
    "test": "def check(f):\n    assert f(2) == 4\n",
    "entry_point": "double",
}
SPAN = {
    **LINE,
    "task_id": "T/1",
    "prompt": "def double(x):\n    y =",
    "suffix": "\n    return y\n",
    "canonical_solution": " 2 * x",
}


class Daemon:
    """Engine with scripted completions that records its requests."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), list[Any]()

    def get(self, _path: str) -> dict[str, Any]:
        return {"pair": "tiny", "backend": "llama.cpp", "requests": 3}

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/complete"
        self.asked.append(body)
        text = self.texts.pop(0)
        if text == "Ctrl-C":
            raise KeyboardInterrupt
        if text == "too long":
            raise ContextOverflow(text)
        choice = {"text": text, "finish": "stop", "confidence": 0.5, "tokens": 4}
        return {"choices": [choice], "timings": {"predicted_ms": 2.0}, "prompt": []}


def results(daemon: Daemon, *lines: dict[str, str]) -> dict[str, Any]:
    tasks, result = [Task(**line) for line in lines], dict[str, Any]()
    with suppress(KeyboardInterrupt):
        run(daemon, tasks, lambda *_: None, result)  # type: ignore[arg-type]
    return result


def test_the_report_has_exact_match_similarity_and_pass_rate() -> None:
    daemon = Daemon("    y = 2 * x", " x * 2", " 0", "too long")
    report = results(daemon, LINE, SPAN, SPAN, SPAN)
    assert (report["tasks"], report["exact_match"], report["pass_at_1"]) == (4, 0.25, 0.5)
    assert report["outcomes"] == {"passed": 2, "failed": 2}
    assert report["edit_similarity"] == pytest.approx((1 + 0.6 + 0 + 0) / 4)
    assert (report["tokens"], report["tokens_per_second"]) == (12, 2000.0)
    assert report["latency_ms"]["p50"] > 0
    assert set(report["sandbox"]) == {"limits", "network", "files", "processes"}
    assert [line["outcome"] for line in report["results"]] == ["passed", "passed", "failed", "failed"]
    assert not report["interrupted"]


def test_an_interrupted_run_keeps_the_results_so_far() -> None:
    report = results(Daemon(" 0", " x * 2", "Ctrl-C"), SPAN, SPAN, SPAN)
    assert (report["interrupted"], report["tasks"], report["pass_at_1"]) == (True, 2, 0.5)
    assert [line["outcome"] for line in report["results"]] == ["failed", "passed"]
    assert results(Daemon("Ctrl-C"), SPAN) == {}


GOOD = json.dumps(LINE).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (GOOD + b"{]\n", ":2: not a HumanEval-Infilling task"),
        (GOOD + json.dumps({**LINE, "prompt": 1}).encode(), r":2: not a HumanEval-Infilling task.*`\$\.prompt`"),
        (GOOD + b" " * (infill.MAX_LINE_BYTES + 1), ":2: line too long"),
        (b"", "no tasks in the file"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(content: bytes, error: str, tmp_path: Path) -> None:
    for name, written in (("a.jsonl", content), ("a.jsonl.gz", gzip.compress(content, mtime=0))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(ModelError, match=error) as raised:
            load(tmp_path / name)
        assert "\n" not in str(raised.value)
