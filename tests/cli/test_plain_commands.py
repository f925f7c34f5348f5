"""Commands, mentions and programs in the chat line by line, over an engine that says what is written down."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from localdflash.chat import model_list, project
from localdflash.chat.answer_sources import SharedDaemon
from localdflash.chat.model_list import ModelRow
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.cli.chat_command import chats_file
from localdflash.cli.console_chat import open_chat
from localdflash.cli.line_chat import converse
from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import OPTIONS, ScriptedEngine, scripted
from localdflash.server.wanted import Wanted
from localdflash.tui.commands import COMMANDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
Told = Callable[..., str]


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
def told(engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """What is printed, on both streams, while somebody types these lines."""

    def chat(*lines: str, kept: bool = False) -> str:
        typed = list(lines)

        def line(*_: object) -> str:
            if not typed:
                raise EOFError
            return typed.pop(0)

        monkeypatch.setattr("builtins.input", line)
        with ExitStack() as stack:
            shared = SharedDaemon(Wanted(OPTIONS))
            chats = chats_file() if kept else None
            assert converse(stack.enter_context(open_chat(shared, chats, ChatSettings(), ""))) == 0
        assert typed == []
        return "".join(capsys.readouterr())

    return chat


def contents(body: Any) -> list[str]:
    return [message["content"] for message in body["messages"]]


def test_help_names_what_there_is_and_nothing_else(told: Told) -> None:
    text = told("/help")
    for name in ("/help", "/model [ID]", "/retry", "/copy [N]", "/quit", "/new", "@path", "!command"):
        assert name in text
    assert "/accepted" not in text
    assert "needs the full screen" in told("/accepted")
    assert "did you mean /retry?" in told("/rerty")


def test_quit_leaves(told: Told, engine: ScriptedEngine) -> None:
    with pytest.raises(AssertionError):
        told("/quit", "not sent")
    with pytest.raises(AssertionError):
        told("/exit", "not sent")
    assert engine.asked == []


def test_a_path_is_a_message(told: Told, engine: ScriptedEngine) -> None:
    told("/etc/hosts")
    assert contents(engine.asked[0]) == ["/etc/hosts"]


def test_another_answer(told: Told, engine: ScriptedEngine) -> None:
    assert "nothing was asked yet" in told("/retry")
    text = told("why?", "/retry", "and?")
    assert [contents(body) for body in engine.asked] == [["why?"], ["why?"], ["why?", "answer 2", "and?"]]
    assert "answer 2" in text


def test_an_answer_goes_on(told: Told, engine: ScriptedEngine) -> None:
    assert "no answer to go on with" in told("/continue")
    told("why?", "/continue")
    assert contents(engine.asked[1]) == ["why?", "answer 1"]
    assert engine.asked[1]["continue_final_message"] is True


def test_another_answer_that_fails_leaves_the_one_before(told: Told, engine: ScriptedEngine) -> None:
    engine.answers[:] = [Answer.of("first"), Answer(status=500, message="oh"), Answer.of("third")]
    assert "oh" in told("why?", "/retry", "and?")
    assert contents(engine.asked[-1]) == ["why?", "first", "and?"]


def test_files_that_a_message_mentions_go_along(told: Told, engine: ScriptedEngine, folder: Path) -> None:
    text = told("what is @a.py?", "and @a.py:one", "see @me")
    assert "goes along: a.py" in text
    assert contents(engine.asked[0]) == ["a.py:\n```\ndef one():\n    return 1\n```\n\nwhat is @a.py?"]
    assert "a.py:one:" in contents(engine.asked[1])[-1]
    assert contents(engine.asked[2])[-1] == "see @me"


def test_a_file_that_may_not_be_used_keeps_the_message(told: Told, engine: ScriptedEngine, folder: Path) -> None:
    (folder / ".env").write_text("KEY=1\n")
    assert "never read" in told("what is @.env?")
    assert engine.asked == []


def test_a_command_of_the_users_is_asked_about(told: Told, engine: ScriptedEngine, folder: Path) -> None:
    text = told("!touch made; echo one two", "n", "!touch made; echo one two", "y", "why?", "and?")
    assert text.count("Run this in") == 2
    assert (folder / "made").exists()
    assert contents(engine.asked[0]) == ["$ touch made; echo one two:\n```\none two\n```\n\nwhy?"]
    assert contents(engine.asked[1])[-1] == "and?"


def test_copying(told: Told) -> None:
    assert "there is no answer yet" in told("/copy")
    assert "opied" in told("why?", "/copy") or "copy" in told("why?", "/copy")
    assert "there is no message 9" in told("why?", "/copy 9")


def test_models(told: Told, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def rows() -> list[ModelRow]:
        return [ModelRow("embedded", "Small", "1 GB", True), ModelRow("large", "Large", "9 GB", False, "too large")]

    monkeypatch.setattr(model_list, "list_models", rows)
    text = told("/model", "/model large")
    assert "embedded" in text
    assert "large: Large, 9 GB, not here, does not run here: too large" in text
    assert "is loaded:" in text


def test_settings_and_instructions(told: Told, engine: ScriptedEngine) -> None:
    text = told("/set temperature 0.5", "/set seed 3", "/set heat 1", "/system Be brief.", "/think off", "why?")
    assert "temperature 0.5, top_k auto" in text
    assert "no setting 'heat'" in text
    assert contents(engine.asked[0]) == ["Be brief.", "why?"]
    assert (engine.asked[0]["temperature"], engine.asked[0]["seed"]) == (0.5, 3)


def test_instructions_of_the_project(told: Told, engine: ScriptedEngine, folder: Path) -> None:
    assert "there is no AGENTS.md" in told("/project")
    (folder / "AGENTS.md").write_text("Use tabs.\n")
    assert "/project on sends it along" in told("why?", kept=True)
    assert contents(engine.asked[-1]) == ["why?"]
    told("/project on", "why?", kept=True)
    assert contents(engine.asked[-1]) == ["Instructions of this project (AGENTS.md):\n\nUse tabs.", "why?"]
    assert "[AGENTS.md goes along]" in told("why?", kept=True)
    assert "Use tabs." in contents(engine.asked[-1])[0]
    told("/project off", "why?", kept=True)
    assert contents(engine.asked[-1]) == ["why?"]
    assert "AGENTS.md" not in told("why?", kept=True)
    found = project.find_project_file(folder)
    assert found
    assert found.allowed is False


def test_the_line_that_resumes(told: Told) -> None:
    assert "localdflash chat --plain --resume 1 goes on" in told("why?", kept=True)
    assert "--resume" not in told("why?")
    assert "--resume" not in told(kept=True)


def test_every_command_is_one_of_the_screens() -> None:
    from localdflash.cli.line_chat import PlainCommands

    own = {name.removeprefix("do_") for name in vars(PlainCommands) if name.startswith("do_")}
    assert own <= {command.name for command in COMMANDS}
