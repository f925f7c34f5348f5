"""Engine failures: no text is lost, and one line reports the failure."""

import sys

import pytest

from localdflash.lab.scripts.support.scripted_answers import Answer
from localdflash.lab.scripts.support.scripted_engine import script
from tests.support.chats import SCRIPTED, Scene, ask

pytestmark = [
    pytest.mark.system,
    pytest.mark.transport,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals"),
]


def test_killed_engine_is_restarted(chats_without_engine: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRIPT", script(Answer.of("word " * 60 + "The end.", rate=60)))
    terminal = chats_without_engine.start(program=SCRIPTED)
    terminal.wait_for("scripted")
    ask(terminal, "tell me", "word word")
    (engine,) = chats_without_engine.engines()
    engine.kill()
    terminal.wait_for("The end.", 30)
    (another,) = chats_without_engine.engines()
    assert another.pid != engine.pid
    assert "tell me" in terminal.text


@pytest.mark.parametrize(
    "answer",
    [
        Answer.pieces("some words ", end="error", message="the device is lost"),
        Answer.pieces("some words ", end="garbage"),
        Answer(status=503, message="too many requests wait", code="queue_full"),
        Answer(status=500, message="an error inside"),
        Answer(status=404, message="no such model", code="model_not_found"),
    ],
    ids=["event", "garbage", "full", "inside", "no model"],
)
def test_engine_error_is_shown_and_retry_works(answer: Answer, chats: Scene) -> None:
    chats.answers(answer)
    terminal = chats.start()
    text = ask(terminal, "tell me", "Ctrl+R")
    assert "tell me" in text
    assert not answer.message or answer.message in text
    assert not answer.steps or "some words" in text
    chats.answers(Answer.of("All of it."))
    terminal.press("ctrl+r")
    terminal.wait_for("All of it.")
    assert [one["content"] for one in chats.engine.asked[-1]["messages"]] == ["tell me"]
