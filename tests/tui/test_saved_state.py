import os
import stat

import pytest

from localdflash.base.errors import LocaldflashError
from localdflash.tui.saved_state import TuiState, load, save, state_file
from localdflash.tui.themes import DEFAULT


def test_what_was_saved_is_found_again_and_private() -> None:
    for state in (TuiState("localdflash-light", seen_welcome=True), TuiState("ansi-dark")):
        save(state)
        assert load() == state
    assert stat.S_IMODE(state_file().parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"theme": 3, "seen_welcome": "yes"}'])
def test_a_broken_file_is_as_good_as_none(content: bytes) -> None:
    assert load() == TuiState(DEFAULT, seen_welcome=False)
    save(TuiState("ansi-dark", seen_welcome=True))
    state_file().write_bytes(content)
    assert load() == TuiState()


def test_a_failed_write_is_one_line_keeps_what_was_there_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    save(TuiState("ansi-dark"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(LocaldflashError, match="No space left") as failed:
            save(TuiState("ansi-light"))
    assert "\n" not in str(failed.value)
    assert load() == TuiState("ansi-dark")
    assert [path.name for path in state_file().parent.iterdir()] == [state_file().name]
