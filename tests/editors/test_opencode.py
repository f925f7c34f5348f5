"""The agent opencode and our server: models of several families write a file, change it and run it."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from localdflash.server.guard import Guard
from tests.editors.conftest import installed
from tests.support.chat_formats import tool_vocabularies
from tests.support.scripted_pair import answering_client
from tests.support.served import KEY, serving
from tests.text.conftest import make_vocabulary, oracle

__all__ = ["make_vocabulary", "oracle", "tool_vocabularies"]
pytestmark = pytest.mark.editors

FILE = 'def greet(name):\n    return "hello " + name\n'


def called(family: str, name: str, arguments: dict[str, str]) -> Sequence[str]:
    """Return the parts of an answer that calls a tool, as a model of this family writes it."""
    text = json.dumps(arguments)
    if family == "hermes":
        return "I do.", "<tool_call>", f'\n{{"name": "{name}", "arguments": {text}}}\n', "</tool_call>", "<|im_end|>"
    if family == "words":
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
        return f"I do.\n{call}", "<|im_end|>"
    thoughts = ("<|channel|>", "analysis", "<|message|>", "I do.", "<|end|>", "<|start|>", "assistant")
    head = ("<|channel|>", f"commentary to=functions.{name} ", "<|constrain|>", "json", "<|message|>")
    return *thoughts, *head, text, "<|call|>"


def said(family: str, text: str) -> Sequence[str]:
    if family == "harmony":
        return "<|channel|>", "final", "<|message|>", text, "<|return|>"
    return text, "<|im_end|>"


@pytest.mark.parametrize("family", ["hermes", "harmony", "words"])
def test_a_file_is_written_changed_and_run(tool_vocabularies: dict[str, Path], tmp_path: Path, family: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    file = str(folder / "greet.py")
    turns: Iterator[tuple[str, dict[str, str]]] = iter(
        [
            ("write", {"content": FILE, "filePath": file}),
            ("edit", {"filePath": file, "oldString": "hello ", "newString": "good morning, "}),
            ("bash", {"command": "python3 -c 'import greet; print(greet.greet(\"you\"))'"}),
        ]
    )
    prompts: list[str] = []

    def answer(prompt: str) -> Sequence[str]:
        if "filePath" not in prompt:  # no tools: the title of the session
            return said(family, "A greeting")
        prompts.append(prompt)
        turn = next(turns, None)
        return called(family, *turn) if turn else said(family, "It is done.")

    with (
        answering_client(tool_vocabularies[family], answer) as (client, _),
        socket.create_server(("127.0.0.1", 0)) as listener,
        serving(Guard(client.app, key=KEY), listener),
    ):
        (folder / "opencode.json").write_text(_settings(listener.getsockname()[1]))
        done = subprocess.run(
            [installed("opencode"), "run", "Write greet.py and run it."],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OPENCODE_DISABLE_AUTOUPDATE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    told = done.stdout + done.stderr
    assert Path(file).read_text() == FILE.replace("hello ", "good morning, "), told
    if family != "harmony":  # its template here leaves results out
        assert "good morning, you" in prompts[-1], told
    assert "good morning, you" in told
    assert "It is done." in told
    assert len(prompts) == 4


def _settings(port: int) -> str:
    """Return the settings of docs/agents.md with this server's port and key."""
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()
    settings = page.partition("```json\n")[2].partition("```")[0]
    key = "{file:~/.local/share/localdflash/api-key}"
    assert key in settings
    return settings.replace(key, KEY).replace("127.0.0.1:8080", f"127.0.0.1:{port}")
