"""`connect`: what is printed is what is written, the user's own settings stay, and one turn reaches the engine."""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from localdflash.base.files import paths
from localdflash.cli.connect_command import PROGRAMS, make_agent

yaml = pytest.importorskip("yaml")
READERS: dict[str, Callable[[str], Any]] = {
    ".json": json.loads,
    ".toml": tomllib.loads,
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
}
URL = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "user" / "llm"))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    return tmp_path / "user"


@pytest.mark.parametrize("program", PROGRAMS)
def test_settings_are_written_once_beside_the_users_own(run: Callable[..., Any], program: str) -> None:
    settings = make_agent(program, URL, paths.key_file(), "k", 4096).settings
    printed = run("connect", program, "--url", URL).out
    assert run("connect", program, "--url", f"{URL}/v1", "--write").code == 0
    read = READERS[settings.path.suffix]
    written = settings.path.read_text()
    assert read(written) == read(printed)
    assert URL in written
    assert (settings.path.stat().st_mode & 0o777) == 0o600
    assert run("connect", program, "--url", URL, "--write").code == 0
    assert settings.path.read_text() == written
    own = {".json": '{"theme": "dark"}', ".toml": 'model = "x"', ".yaml": "- model_id: x"}.get(
        settings.path.suffix, "a: 1"
    )
    settings.path.write_text(own)
    done = run("connect", program, "--url", URL, "--write")
    if settings.alone:
        assert (done.code, settings.path.read_text()) == (2, own)
        assert "cannot be merged" in done.err
    else:
        assert str(read(own)).strip("[{}]") in str(read(settings.path.read_text()))


def test_claude_code_gets_only_a_window_that_it_accepts() -> None:
    windows = [make_agent("claude", URL, paths.key_file(), "k", size).settings.text for size in (32768, 200_000)]
    assert ["CLAUDE_CODE_AUTO_COMPACT_WINDOW" in text for text in windows] == [False, True]


@pytest.mark.parametrize("mode", [0o644, 0o400])
def test_other_settings_and_the_mode_stay(run: Callable[..., Any], own_home: Path, mode: int) -> None:
    file = own_home / ".config" / "zed" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"theme": "Łódź 😀"}', "utf-8")
    file.chmod(mode)
    assert run("connect", "zed", "--write").code == 0
    assert '"theme": "Łódź 😀"' in file.read_text("utf-8")
    assert (file.stat().st_mode & 0o777) == mode


@pytest.mark.parametrize(
    ("program", "text"),
    [("zed", b"// mine\n{}"), ("zed", b"[]"), ("zed", b"null"), ("zed", b"\xff{}"), ("codex", b'model = "\xe9"')],
)
def test_a_file_that_cannot_be_merged_is_left_alone(run: Callable[..., Any], program: str, text: bytes) -> None:
    file = make_agent(program, URL, paths.key_file(), "k", 4096).settings.path
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    done = run("connect", program, "--write")
    assert (done.code, file.read_bytes()) == (2, text)
    assert "cannot be merged" in done.err


def test_one_turn(run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run("connect", "llm", "--check", "--url", URL)
    assert refused.code == 1
    monkeypatch.setattr("localdflash.server.client.Client.health", lambda _: {"status": "ok"})
    program = tmp_path / "llm"
    program.write_text('#!/bin/sh\necho "$@" > "$OUT"\n')
    program.chmod(0o755)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert run("connect", "llm", "--check", "--url", URL).code == 0
    key = paths.key_file().read_text().strip()
    assert (tmp_path / "out").read_text() == f"-m localdflash Say hello. --key {key}\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert run("connect", "llm", "--check", "--url", URL).code == 1
