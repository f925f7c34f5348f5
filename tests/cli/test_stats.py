"""`localdflash stats`: the counts of suggestions, and that they can be switched off."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from localdflash.lsp import lsp_methods, transport
from localdflash.lsp.usage import EVENTS, UsageLog, usage_file


@pytest.mark.usefixtures("home")
def test_stats(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no suggestions" in run("stats").err
    log = UsageLog(usage_file())
    for event in (*EVENTS, "suggested"):
        log.add("python", "new line", event)
    log.flush()
    assert json.loads(run("stats", "--json").out) == [
        {"language": "python", "place": "new line", "suggested": 2, "accepted": 1, "kept": 1}
    ]
    lines = run("stats", "--days", 1).out.splitlines()
    assert lines[-1].split() == ["all", "2", "1", "(50", "%)", "1", "(100", "%)"]
    used: list[object] = []
    monkeypatch.setattr(transport, "serve_stdio", lambda create: create() and 0)
    monkeypatch.setattr(lsp_methods, "create_server", lambda _, usage: used.append(usage))
    run("lsp")
    monkeypatch.setenv("LOCALDFLASH_COMPLETION_STATS", "off")
    run("lsp")
    assert used == [usage_file(), None]
