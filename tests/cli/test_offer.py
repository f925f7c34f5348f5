"""The offer to pull the chat's pair: made once, only where it makes sense, and nothing is fetched without a yes."""

from collections.abc import Callable
from pathlib import Path

import click
import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.cli import offer
from localdflash.models.config import config_file
from localdflash.models.registry import fetching, hub
from localdflash.models.registry.defaults import CHAT, CODE
from localdflash.models.registry.pair_entry import PairEntry

Answers = Callable[[bool], None]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions so far. Who asks one more than was expected fails."""
    found: list[str] = []
    monkeypatch.setattr(hub, "offline", lambda: False)
    monkeypatch.setattr(click, "confirm", lambda *_, **__: pytest.fail("a question was asked"))
    return found


@pytest.fixture
def answer(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Answers the next question."""

    def set_answer(yes: bool) -> None:
        def confirm(question: str, **_: object) -> bool:
            asked.append(question)
            return yes

        monkeypatch.setattr(click, "confirm", confirm)

    return set_answer


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was pulled; the file then is in its place."""
    found: list[str] = []

    def pull(pair: PairEntry, _: object) -> list[object]:
        found.append(pair.id)
        pair.target.path.parent.mkdir(parents=True, exist_ok=True)
        pair.target.path.write_bytes(b"GGUF")
        return []

    monkeypatch.setattr(fetching, "pull", pull)
    return found


def test_a_yes_pulls_it(asked: list[str], answer: Answers, pulled: list[str]) -> None:
    answer(True)
    assert offer.with_offer("embedded") == CHAT
    assert pulled == [CHAT, CODE]
    assert "SmolLM2 135M Instruct (Apache-2.0), 93 MB." in asked[0]


def test_a_no_is_remembered(asked: list[str], answer: Answers, pulled: list[str]) -> None:
    answer(False)
    assert [offer.with_offer("embedded") for _ in range(2)] == ["embedded"] * 2
    assert (len(asked), pulled) == (1, [])


def test_a_pull_that_fails_is_told_and_the_chat_begins(
    asked: list[str], answer: Answers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise LocaldflashError("no network")

    monkeypatch.setattr(fetching, "pull", fail)
    answer(True)
    assert [offer.with_offer("embedded") for _ in range(2)] == ["embedded"] * 2
    assert len(asked) == 1
    assert capsys.readouterr().err == "no network (`localdflash models pull smollm2-135m`)\n"


def test_an_interrupted_pull_is_offered_again(
    asked: list[str], answer: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "pull", interrupt)
    answer(True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            offer.with_offer("embedded")
    assert len(asked) == 2


def test_a_folder_that_cannot_be_written_stops_nothing(home: Path, asked: list[str], answer: Answers) -> None:
    home.write_text("in the way")
    answer(False)
    assert offer.with_offer("embedded") == "embedded"


@pytest.mark.parametrize("why", ["offline", "a chat's pair", "a pair", "a server", "it is here"])
def test_nothing_is_asked_where_there_is_no_use(
    why: str, asked: list[str], monkeypatch: pytest.MonkeyPatch, pulled: list[str]
) -> None:
    lines = {"a chat's pair": "[chat]\npair = 'b'", "a pair": "[model]\npair = 'embedded'"}
    lines["a server"] = "[server]\nurl = 'http://127.0.0.1:9/v1'"
    config_file().parent.mkdir(parents=True)
    config_file().write_text(lines.get(why, ""))
    if why == "offline":
        monkeypatch.setattr(hub, "offline", lambda: True)
    if why == "it is here":
        from localdflash.models.registry.registry import load_registry

        fetching.pull(load_registry().pair(CHAT), None)  # type: ignore[arg-type]  # the fixture's
    assert offer.with_offer("embedded") == "embedded"
    assert not offer.answer_file().exists()
