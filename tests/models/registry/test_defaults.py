"""Default pairs of the chat and of completions."""

from pathlib import Path

import pytest

from localdflash.models.config import config_file, load_config
from localdflash.models.registry.defaults import CHAT, CODE, chat_pair, completion_pair, missing_default_pairs
from localdflash.models.registry.registry import load_registry


@pytest.fixture
def here(home: Path) -> None:
    """Create a file at the path of the chat pair's target."""
    path = load_registry().pair(CHAT).target.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")


def suggested_pulls() -> list[str]:
    """Return the ids of the pairs suggested for pulling."""
    return [found.id for found in missing_default_pairs(load_config())]


def pairs(text: str = "") -> tuple[str, str]:
    """Return the chat pair and the completion pair with these settings."""
    config_file().parent.mkdir(parents=True, exist_ok=True)
    config_file().write_text(text)
    return chat_pair(load_config()), completion_pair(load_config())


def test_chat_pair_is_used_once_downloaded(here: None) -> None:
    assert pairs() == (CHAT, "embedded")
    assert suggested_pulls() == [CODE]


@pytest.mark.parametrize(
    ("settings", "chat", "completion"),
    [
        ("[model]\npair = 'a'\n", "a", "a"),
        ("[model]\npair = 'embedded'\n", "embedded", "embedded"),
        ("[chat]\npair = 'b'\n", "b", "embedded"),
        ("[model]\npair = 'a'\n[chat]\npair = 'b'\n", "b", "a"),
        ("[model]\npair = 'a'\n[completion]\npair = 'c'\n", "a", "c"),
    ],
)
def test_settings_come_first(settings: str, chat: str, completion: str, here: None) -> None:
    assert pairs(settings) == (chat, completion)


def test_no_pull_is_suggested_if_another_pair_is_configured() -> None:
    for settings, left in (
        ("[model]\npair = 'embedded'\n", []),
        ("[chat]\npair = 'b'\n", [CODE]),
        ("[completion]\npair = 'c'\n", [CHAT]),
    ):
        pairs(settings)
        assert suggested_pulls() == left
