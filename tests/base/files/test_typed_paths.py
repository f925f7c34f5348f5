import os
from pathlib import Path

import pytest

from localdflash.base.errors import UsageError
from localdflash.base.files.typed_paths import absolute_pair, absolute_path


def test_unknown_user_stays_in_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("USERPROFILE", "/home/x")
    assert absolute_path("~nobody-has-this-name/m.gguf") == tmp_path / "~nobody-has-this-name" / "m.gguf"
    assert absolute_path("~/m.gguf") == Path("/home/x/m.gguf").absolute()
    assert absolute_path("m.gguf") == tmp_path / "m.gguf"


@pytest.mark.parametrize("pair", ["embedded", "hf:owner/name", "hf:owner/name/m.gguf", "ollama:owner/name:8b"])
def test_names_of_pairs_are_not_paths(pair: str) -> None:
    assert absolute_pair(pair) == pair


@pytest.mark.parametrize("pair", ["m.gguf", "models/m", "./m.GGUF"])
def test_path_of_a_pair_becomes_absolute(pair: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_pair(pair) == str(tmp_path / pair)


def test_path_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^/models/\\udcff.gguf: the path is not UTF-8; rename"):
        absolute_path(os.fsdecode(b"/models/\xff.gguf"))
