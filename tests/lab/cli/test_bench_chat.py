"""`localdflash bench` for a chat pair: suite, output, result file and exit codes."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.errors import OutOfMemory
from localdflash.lab import result_file
from localdflash.lab.bench.chat import chat_run
from localdflash.lab.cli.bench_chat import is_chat_pair

ROW = {
    "tok_s": {"plain": 200.0, "drafting": 320.0},
    "over_plain": {"drafting": 1.6, "forced": 0.9, "sampled": 1.3},
    "over_llama_cpp": {"plain": 1.5, "drafting": 2.4},
    "tau": {"drafting": 1.9, "forced": 2.1},
    "identical": {"greedy": "4/4", "sampled": "4/4"},
    "dflash_share_of_drafted": 0.41,
    "accept_by_slot": [0.6, 0.3],
}
MEASURED: dict[str, Any] = {
    "interrupted": False,
    "categories": {"talk": ROW},
    "overall": ROW,
    "identical": ROW["identical"],
    "distribution": {"p_value": 0.25, "draws": 1800},
    "step_ms": {"forced": {"draft": 1.0, "verify": 5.0}},
    "verify": {"over_ar": {"1": 1.0, "8": 2.5}},
    "context": [{"context": 256, "tok_s": {"plain": 100.0}, "tau": {"drafting": 1.5}}],
    "other_plain": {"torch": {"tok_s": 9.0, "over_plain": 0.04}},
    "daemon": {"cold_start_ms": {"p50": 1900.0}, "warm_ms": {"p50": 55.0}, "typed_ms": {"p50": 25.0}},
}


@pytest.fixture
def measures(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that replaces the measurement by one of MEASURED with changes, and returns its calls."""

    def given(error: BaseException | None = None, **changes: Any) -> list[Any]:
        calls: list[Any] = []

        def run(options: Any, wanted: Any, limit: Any, repeats: int, watcher: Any, result: dict[str, Any]) -> None:
            watcher.plan(90.0, "so many prompts: 90 seconds at most")
            watcher.done(45.0, "talk/00")
            calls.append((options.pair, limit, repeats))
            result |= MEASURED | changes
            if error:
                raise error

        monkeypatch.setattr(chat_run, "run", run)
        return calls

    return given


def test_the_result_the_tables_and_the_picture(
    run: Callable[..., Any], tiny: tuple[str, ...], measures: Callable[..., Any], tmp_path: Path
) -> None:
    calls = measures()
    file, picture = tmp_path / "results" / "chat.json", tmp_path / "pictures" / "chat.png"
    done = run("bench", "--suite", "chat", *tiny, "--limit", 4, "--json", file, "--picture", picture)
    assert done.code == 0
    assert calls == [(tiny[1], 4, 1)]
    result = json.loads(file.read_text())
    assert result.items() >= MEASURED.items()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert done.err.splitlines()[0] == "so many prompts: 90 seconds at most"
    head, talk, overall, *rest = done.out.splitlines()
    assert head.split()[:5] == ["CATEGORY", "PLAIN", "TOK/S", "TOK/S", "DRAFTING"]
    assert talk.split() == ["talk", "200", "320", "1.60", "1.30", "2.40", "1.90", "2.10", "4/4", "4/4"]
    assert overall.split()[0] == "overall"
    text = "\n".join(rest)
    for part in ("41 %", "p = 0.250 over 1800 draws", "draft 1.00, verify 5.00 ms", "8 2.50", "55 ms warm, 25 typed"):
        assert part in text


@pytest.mark.parametrize(
    ("error", "changes", "code"),
    [
        (None, {"identical": {"greedy": "3/4", "sampled": "4/4"}}, 1),
        (KeyboardInterrupt(), {"interrupted": True}, 130),
        (OutOfMemory("the answer does not fit"), {"interrupted": True}, 4),
    ],
)
def test_exit_codes(
    error: BaseException | None,
    changes: dict[str, Any],
    code: int,
    run: Callable[..., Any],
    tiny: tuple[str, ...],
    measures: Callable[..., Any],
    tmp_path: Path,
) -> None:
    measures(error, **changes)
    done = run("bench", "--suite", "chat", *tiny, "--json", tmp_path / "a.json")
    assert done.code == code
    assert "talk" in done.out
    assert ("localdflash: the answer does not fit" in done.err) == isinstance(error, OutOfMemory)
    assert json.loads((tmp_path / "a.json").read_text())["overall"] == ROW


def test_a_result_that_cannot_be_written_is_still_shown(
    run: Callable[..., Any],
    tiny: tuple[str, ...],
    measures: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(path: Path, _measurement: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    measures()
    monkeypatch.setattr(result_file, "write", fails)
    done = run("bench", "--suite", "chat", *tiny, "--json", tmp_path / "a.json")
    assert (done.code, "disk full" in done.err, "55 ms warm" in done.out) == (1, True, True)


def test_the_suite_depends_on_completion_support(tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_chat_pair("embedded", "auto")
    assert not is_chat_pair(tiny[1], "auto")  # its vocabulary has the markers
    assert is_chat_pair(tiny[1], "chat")
    monkeypatch.setattr("localdflash.text.fim_formats.FORMATS", {})
    assert is_chat_pair(tiny[1], "auto")
    assert not is_chat_pair(tiny[1], "code")
    assert not is_chat_pair("embedded", "auto")  # the registry names its format
