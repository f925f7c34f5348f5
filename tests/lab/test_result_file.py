"""Result files with their conditions, and the committed result files."""

import json
import sys
from pathlib import Path

import pytest

from localdflash.lab import result_file

RESULTS = sorted((result_file.ROOT / "bench" / "results").glob("*.json"))
CONDITIONS = ("command", "date", "commit", "processor")
DIRTY_UNTIL = "2026-11-26"  # later results come from a clean tree


def test_parts_of_a_file_keep_their_own_conditions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "found.json"
    for name, value in (("first", 1), ("second", 2), ("first", 3)):
        monkeypatch.setattr(
            sys, "argv", [str(Path(sys.prefix) / "bin/localdflash"), "bench", str(file), "--pair", name]
        )
        result_file.write(file, {"value": value}, name)
    found = json.loads(file.read_text("utf-8"))
    assert {name: (part["value"], part["command"]) for name, part in found.items()} == {
        "first": (3, "localdflash bench found.json --pair first"),
        "second": (2, "localdflash bench found.json --pair second"),
    }


def test_the_commit_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_file, "_git", lambda *_: "committed-during-the-run")
    result_file.write(tmp_path / "found.json", {})
    assert json.loads((tmp_path / "found.json").read_text("utf-8"))["commit"] != "committed-during-the-run"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: str(file.stem))
def test_committed_results_state_their_conditions(file: Path) -> None:
    whole = json.loads(file.read_text("utf-8"))
    for part in [whole] if "command" in whole else whole.values():
        assert all(part[name] for name in CONDITIONS)
        assert not part["commit"].endswith("-dirty") or part["date"] <= DIRTY_UNTIL
