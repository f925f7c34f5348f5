"""Offer to pull the chat pair: made once, only if useful; nothing is downloaded without consent."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click
import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.cli import offer
from localdflash.models.config import config_file
from localdflash.models.registry import fetching, hub
from localdflash.models.registry.defaults import CHAT, CODE
from localdflash.models.registry.pair_entry import PairEntry
from localdflash.models.registry.registry import load_registry

Answers = Callable[[bool], None]


def test_better_pair_hint() -> None:
    assert f"`localdflash models pull {CHAT}` gets a better one, 93 MB" in offer.better_pair_hint("embedded")
    assert offer.better_pair_hint(CHAT) == ""


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the questions so far; an unexpected one fails."""
    found: list[str] = []
    monkeypatch.setattr(hub, "offline_variable", lambda: "")
    monkeypatch.setattr(click, "confirm", lambda *_, **__: pytest.fail("a question was asked"))
    return found


@pytest.fixture
def answer(questions: list[str], monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Return a function that answers the next question."""

    def set_answer(yes: bool) -> None:
        def confirm(question: str, **_: object) -> bool:
            questions.append(question)
            return yes

        monkeypatch.setattr(click, "confirm", confirm)

    return set_answer


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the pulled pairs; a pull creates the target's file."""
    found: list[str] = []

    def pull(pair: PairEntry, _: object) -> list[object]:
        found.append(pair.id)
        pair.target.path.parent.mkdir(parents=True, exist_ok=True)
        pair.target.path.write_bytes(b"GGUF")
        return []

    monkeypatch.setattr(fetching, "pull", pull)
    return found


def test_a_yes_pulls_the_pairs_and_a_no_is_remembered(
    questions: list[str], answer: Answers, pulled: list[str], home: Path
) -> None:
    answer(False)
    assert [offer.offer_better_pair("embedded") for _ in range(2)] == ["embedded"] * 2
    assert (len(questions), pulled) == (1, [])
    offer.answer_file().unlink()
    answer(True)
    assert offer.offer_better_pair("embedded") == CHAT
    assert pulled == [CHAT, CODE]
    assert "SmolLM2 135M Instruct (Apache-2.0), 93 MB." in questions[0]


@pytest.mark.parametrize("error", [LocaldflashError("no network"), KeyboardInterrupt()])
def test_a_failed_pull_is_reported_once_and_an_interrupted_one_is_offered_again(
    error: BaseException, questions: list[str], answer: Answers, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(fetching, "pull", fail)
    answer(True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
            assert offer.offer_better_pair("embedded") == "embedded"
    if isinstance(error, KeyboardInterrupt):
        assert len(questions) == 2
    else:
        assert len(questions) == 1
        assert capsys.readouterr().err == "no network (`localdflash models pull smollm2-135m`)\n"


@pytest.mark.parametrize(
    "settings",
    ["offline", "[chat]\npair = 'b'", "[model]\npair = 'embedded'", "[server]\nurl = 'http://127.0.0.1:9/v1'", "here"],
)
@pytest.mark.usefixtures("questions", "pulled")
def test_offer_is_skipped_when_useless(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text(settings if "=" in settings else "")
    if settings == "offline":
        monkeypatch.setattr(hub, "offline_variable", lambda: "HF_HUB_OFFLINE")
    if settings == "here":
        fetching.pull(load_registry().pair(CHAT), None)  # type: ignore[arg-type]  # the fixture's
    assert offer.offer_better_pair("embedded") == "embedded"
    assert not offer.answer_file().exists()
