"""Chats that are printed, on disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localdflash.chat.store import ChatStore
from localdflash.cli.kept import Kept


def test_a_chat_that_is_deleted_elsewhere_goes_on_as_another_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "data" / "chats.db"
    kept, other = Kept(path, "tiny", ""), ChatStore.open(path, print)
    reply: Any = SimpleNamespace(finish="stop", numbers={})
    kept.add("one", "1", reply)
    (first,) = other.sessions()
    other.delete(first.id)
    kept.add("two", "2", reply)
    (info,) = other.sessions()
    assert [message.text for message in other.path(info.id)] == ["two", "2"]
    assert "kept as another chat" in capsys.readouterr().err
    kept.close()
    other.close()
