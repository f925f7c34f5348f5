"""Every command of docs/api.md, run by a shell against a server, and its answer compared field by field."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"```sh\n(curl .*?)\n```\n```(json|text)\n(.*?)\n```", re.DOTALL)
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
TRANSCRIPTS = BLOCK.findall(PAGE)
REST = "…"  # more fields than are shown


def compare(shown: Any, told: Any, place: str = "answer") -> None:
    """Same fields, same kinds of values; of lists the first item."""
    kinds: dict[type, Any] = {
        bool: bool,
        int: (int, float),
        float: (int, float),
        str: str,
        dict: dict,
        list: list,
        type(None): type(None),
    }
    assert isinstance(told, kinds[type(shown)]), f"{place}: {told!r}"
    if isinstance(shown, dict):
        missing = {*shown} - {REST} - {*told}
        more = {*told} - {*shown}
        assert not missing, f"{place}: {missing} are not in {told}"
        assert not more or REST in shown, f"{place}: {more} are not shown"
        for name in {*shown} - {REST}:
            compare(shown[name], told[name], f"{place}.{name}")
    elif isinstance(shown, list) and shown:
        assert told, place
        compare(shown[0], told[0], f"{place}[0]")


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    if not text.startswith("event: "):  # OpenAI's, which have no names
        assert data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("command", "kind", "shown"), TRANSCRIPTS, ids=range(len(TRANSCRIPTS)))
def test_what_the_page_shows(live: Any, command: str, kind: str, shown: str) -> None:
    environment = {"SOCKET": str(live.socket), "PORT": str(live.port), "KEY": live.key, "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    if kind == "json":
        compare(json.loads(shown), json.loads(ran.stdout))
    elif shown.startswith(("data: ", "event: ")):
        for number, (one, other) in enumerate(zip(events(shown), events(ran.stdout), strict=False)):
            compare(one, other, f"event {number}")
    else:
        assert ran.stdout.strip() == shown
