"""Commands, mentions and shell commands of the line chat, with a scripted engine."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localdflash.chat import model_list, project
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.chat.model_list import ModelRow
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.cli.chat_command import chats_file
from localdflash.cli.console_chat import open_chat
from localdflash.cli.line_chat import LineChat, converse
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import OPTIONS, ScriptedEngine, scripted
from localdflash.server.engine_spec import EngineSpec
from localdflash.tui.commands import COMMANDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
RunChat = Callable[..., str]
INTERRUPT = "\x03"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / "a.py").write_text("def one():\n    return 1\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def engine(short_home: Path, folder: Path) -> Iterator[ScriptedEngine]:
    with scripted(*[Answer.of(f"answer {number}") for number in range(1, 9)]) as engine:
        yield engine


@pytest.fixture
def chat(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunChat:
    """Return the output on both streams for these typed lines."""

    def chat(*lines: str, is_stored: bool = False) -> str:
        typed = list(lines)

        def line(*_: object) -> str:
            if not typed:
                raise EOFError
            if (text := typed.pop(0)) == INTERRUPT:
                raise KeyboardInterrupt
            return text

        monkeypatch.setattr("builtins.input", line)
        chats = chats_file() if is_stored else None
        with open_chat(SharedDaemon(EngineSpec(OPTIONS)), chats, ChatSettings(), "") as opened:
            assert converse(opened) == 0
        assert typed == []
        return "".join(capsys.readouterr())

    return chat


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


def test_help_lists_the_commands_of_the_line_by_line_chat(chat: RunChat) -> None:
    text = chat("/help")
    for name in ("/help", "/model [ID]", "/retry", "/copy [N]", "/quit", "/new", "@path", "!command"):
        assert name in text
    assert "/accepted" not in text
    assert "full screen" in chat("/accepted")
    assert "did you mean /retry?" in chat("/rerty")
    own = {name.removeprefix("do_") for name in vars(LineChat) if name.startswith("do_")}
    assert own <= {command.name for command in COMMANDS}


def test_ctrl_c_drops_the_typed_line_and_leaves_at_an_empty_prompt(
    chat: RunChat, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    readline = pytest.importorskip("readline")
    typed = ["half a li", ""]
    monkeypatch.setattr(readline, "get_line_buffer", lambda: typed.pop(0))
    assert "answer 1" in chat(INTERRUPT, "hello", INTERRUPT)
    assert typed == []
    assert len(engine.asked) == 1


def test_quit_leaves_and_a_path_is_a_message(chat: RunChat, engine: ScriptedEngine) -> None:
    for command in ("/quit", "/exit"):
        with pytest.raises(AssertionError):
            chat(command, "not sent")
    chat("/etc/hosts")
    assert [contents(body) for body in engine.asked] == [["/etc/hosts"]]


def test_retry_and_continue(chat: RunChat, engine: ScriptedEngine) -> None:
    assert "this chat has no message yet" in chat("/retry")
    assert "no answer" in chat("/continue")
    text = chat("why?", "/retry", "and?", "/continue")
    assert [contents(body) for body in engine.asked] == [
        *(["why?"], ["why?"], ["why?", "answer 2", "and?"], ["why?", "answer 2", "and?", "answer 3"])
    ]
    assert engine.asked[-1]["continue_final_message"] is True
    assert "answer 2" in text
    engine.answers[:] = [Answer.of("first"), Answer(status=500, message="oh"), Answer.of("third")]
    assert "oh" in chat("why?", "/retry", "and?")  # a failed retry keeps the answer before it
    assert contents(engine.asked[-1]) == ["why?", "first", "and?"]


def test_mentioned_files_are_attached_unless_they_are_refused(
    chat: RunChat, engine: ScriptedEngine, folder: Path
) -> None:
    text = chat("what is @a.py?", "and @a.py:one", "see @me")
    assert "a.py" in text
    assert contents(engine.asked[0]) == ["a.py:\n```\ndef one():\n    return 1\n```\n\nwhat is @a.py?"]
    assert "a.py:one:" in contents(engine.asked[1])[-1]
    assert contents(engine.asked[2])[-1] == "see @me"
    (folder / ".env").write_text("KEY=1\n")
    assert "never read" in chat("what is @.env?")
    assert len(engine.asked) == 3


def test_a_shell_command_runs_only_after_a_yes(chat: RunChat, engine: ScriptedEngine, folder: Path) -> None:
    text = chat("!touch made", "n", "!echo one two", "y", "why?", "and?")
    assert text.count(str(folder)) >= 2
    assert not (folder / "made").exists()
    assert contents(engine.asked[0]) == ["$ echo one two:\n```\none two\n```\n\nwhy?"]
    assert contents(engine.asked[1])[-1] == "and?"


def test_copy_command(chat: RunChat) -> None:
    assert "no answer yet" in chat("/copy")
    assert "cop" in chat("why?", "/copy").lower()
    assert "no message 9" in chat("why?", "/copy 9")


def test_model_command(chat: RunChat, monkeypatch: pytest.MonkeyPatch) -> None:
    async def rows() -> list[ModelRow]:
        return [ModelRow("embedded", "Small", "1 GB", True), ModelRow("large", "Large", "9 GB", False, "too large")]

    monkeypatch.setattr(model_list, "list_models", rows)
    text = chat("/model", "/model large")
    assert all(part in text for part in ("embedded", "large: Large, 9 GB, not downloaded", "too large", "is loaded"))


def test_ctrl_c_ends_the_list_of_models_only(chat: RunChat, monkeypatch: pytest.MonkeyPatch) -> None:
    async def rows() -> list[ModelRow]:
        raise KeyboardInterrupt

    monkeypatch.setattr(model_list, "list_models", rows)
    assert "answer 1" in chat("/model", "why?")


def test_settings_and_instructions(chat: RunChat, engine: ScriptedEngine) -> None:
    text = chat("/set temperature 0.5", "/set seed 3", "/set heat 1", "/system Be brief.", "/think off", "why?")
    assert "temperature 0.5, top_k auto" in text
    assert "thinking off" in text
    assert "'heat'" in text
    assert contents(engine.asked[0]) == ["Be brief.", "why?"]
    assert (engine.asked[0]["temperature"], engine.asked[0]["seed"]) == (0.5, 3)


def test_instructions_of_the_project(chat: RunChat, engine: ScriptedEngine, folder: Path) -> None:
    assert "no AGENTS.md" in chat("/project")
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    assert "/project on" in chat("why?", is_stored=True)
    assert contents(engine.asked[-1]) == ["why?"]
    chat("/project on", "why?", is_stored=True)
    with_project = ["Instructions of this project (AGENTS.md):\n\nUse tabs.", "why?"]
    assert contents(engine.asked[-1]) == with_project
    assert "AGENTS.md" in chat("why?", is_stored=True)
    assert contents(engine.asked[-1]) == with_project
    chat("/project off", "why?", is_stored=True)
    assert "AGENTS.md" not in chat("why?", is_stored=True)
    assert contents(engine.asked[-1]) == ["why?"]
    found = project.find_project_file(folder)
    assert found
    assert found.allowed is False
