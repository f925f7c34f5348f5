"""Counts of suggestions: made, accepted and kept, in a local file without code."""

import asyncio
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from localdflash.lsp import lsp_server, usage
from localdflash.lsp.usage import UsageLog, position_kind, read_usage
from tests.lsp.conftest import until
from tests.lsp.test_server import BODY, HOLE, TEXT
from tests.support import daemons

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
    pytest.mark.filterwarnings(daemons.DROPPED_SOCKET),
]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_suggestion_is_counted_as_made_accepted_and_kept(
    editor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    path, checked = tmp_path / "data" / "counts.jsonl", list[str]()
    monkeypatch.setattr(lsp_server, "UsageLog", lambda _: UsageLog(path))
    monkeypatch.setattr(lsp_server, "KEPT_SECONDS", 0.3)
    count_if_kept = lsp_server.SuggestionServer._count_if_kept

    def record(server: Any, name: str, *more: Any) -> None:
        count_if_kept(server, name, *more)
        checked.append(name)

    monkeypatch.setattr(lsp_server.SuggestionServer, "_count_if_kept", record)
    async with editor(oracle=TEXT) as e:
        e.open(HOLE)
        assert await e.ask(4, 4)
        e.edit(4, 4, BODY.strip())
        if not kept:
            e.edit(5, 4, "other", removed=5)
        await until(lambda: checked)
    expected = {("python", "new line", "suggested"): 1, ("python", "new line", "accepted"): 1}
    assert read_usage(path, date.min) == expected | ({("python", "new line", "kept"): 1} if kept else {})
    assert "Return" not in path.read_text()
    assert path.stat().st_mode & 0o77 == 0
    await asyncio.sleep(0)


def test_the_file_is_bounded_and_damage_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_FILE_BYTES", 100)
    path = tmp_path / "counts.jsonl"
    for _ in range(9):
        log = UsageLog(path)
        log.add("python", "new line", "kept")
        log.flush()
    path.write_text(
        path.read_text() + "{\n[1]\n" + '{"day": "x"}\n' + '{"day": "2020-01-01", "counts": [["a", "b"]]}\n'
    )
    assert 0 < read_usage(path, date.min)["python", "new line", "kept"] < 9
    assert read_usage(path, date.max) == read_usage(tmp_path / "none", date.min) == Counter()
    log = UsageLog(None)
    log.add("python", "new line", "kept")
    log.flush()


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [("a\n  ", "\nb", "new line"), ("x = f(", ")\r\n", "end of a line"), ("x = ", "(a)\n", "within a line")],
)
def test_position_kinds(before: str, after: str, kind: str) -> None:
    assert position_kind(before, after) == kind
